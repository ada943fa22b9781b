"""Text files, plain or `.gz`, read line by line."""

import contextlib
import filecmp
import gzip
import io
import unicodedata
import zlib
from collections.abc import Iterator
from pathlib import Path

from experiments import storage
from experiments.errors import UserError


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, 'strerror', None) or error
        raise UserError(f'data: {path} cannot be read: {reason}') from None


@contextlib.contextmanager
def opened(path: Path) -> Iterator[io.BufferedIOBase]:
    open_file = gzip.open if path.suffix == '.gz' else open
    with reading(path), open_file(path, 'rb') as file:
        yield file


def same_content(path: Path, other: Path) -> bool:
    with reading(path):
        return filecmp.cmp(path, other, shallow=False)


def lines(path: Path) -> Iterator[str]:
    """Yields the lines of a text file, plain or `.gz`, as NFC.

    Other separators may be part of a sentence.
    """
    with opened(path) as file:
        for number, line in enumerate(file, 1):
            try:
                if number == 1:
                    storage.check_line_ends(line)
                text = storage.decode_line(line)
            except ValueError as error:
                raise UserError(f'data: {path}, line {number}, {error}') from None
            yield unicodedata.normalize('NFC', text)

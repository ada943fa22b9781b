"""Parallel text files: `text(path="corpus", source="en", target="de")`."""

import contextlib
import dataclasses
import functools
import gzip
import hashlib
import io
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from experiments.data.sources import _paths
from experiments.errors import UserError

_BLOCK = 1 << 20  # bytes that are read at once to count lines


@dataclasses.dataclass(frozen=True)
class Text:
    """A folder of files named `<set>.<language>`, plain or `.gz`, with parallel lines.

    `train` is trained on and `val` judges the training; every other set that has both
    languages is one more evaluation set. Files are UTF-8, one sentence a line; where a
    plain file and a `.gz` of the same name lie side by side, the plain one is read.
    Text is brought to Unicode's NFC.

    Attributes:
      path: the folder; `~` is the home directory.
      source: language code of the files to translate from.
      target: language code of the files to translate to.

    Raises:
      UserError: when made, for a folder or file that is missing; when read, for files
        that are empty, not UTF-8 or of unequal length.
    """

    path: str
    source: str
    target: str

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, str) or not value:
                raise UserError(
                    f'data: text({field.name}={value!r}): give a text such as "en"'
                )
            _paths.check(f'text({field.name})', value)
        if self.source == self.target:
            raise UserError(
                f'data: source and target are both {self.source!r}; name two languages'
            )
        _paths.folder('text(path)', self.path)
        for name in ('train', 'val'):
            for language in (self.source, self.target):
                self._file(name, language)

    def train(self) -> Iterator[tuple[str, str]]:
        return self._pairs('train')

    def evaluation(self) -> dict[str, list[tuple[str, str]]]:
        names = ['val', *sorted(self._names() - {'train', 'val'})]
        return {name: list(self._pairs(name)) for name in names}

    def digest(self) -> str:
        return self._digest

    @functools.cached_property
    def _digest(self) -> str:
        """Of the files as they are; lines of plain ones are counted on the way."""
        digest = hashlib.sha256()
        for language in (self.source, self.target):
            path = self._file('train', language)
            with _paths.reading(path), path.open('rb') as file:
                sums, lines = _scan(file)
            digest.update(sums)
            if path.suffix != '.gz':
                self._line_counts[path] = lines
        return digest.hexdigest()

    @functools.cached_property
    def _line_counts(self) -> dict[Path, int]:
        """The lines of the files that were read once, so that none is read for them."""
        return {}

    @property
    def _folder(self) -> Path:
        return _paths.expanded('text(path)', self.path)

    def _names(self) -> set[str]:
        """The sets that are there in both languages."""
        with _paths.reading(self._folder):
            files = {file.name.removesuffix('.gz') for file in self._folder.iterdir()}
        stems = set()
        for file in files:
            stem = file.removesuffix(f'.{self.source}')
            if stem != file and f'{stem}.{self.target}' in files:
                stems.add(stem)
        return {stem for stem in stems if not stem.startswith('.')}

    def _file(self, name: str, language: str) -> Path:
        plain = self._folder / f'{name}.{language}'
        packed = plain.with_name(f'{plain.name}.gz')
        for file in (plain, packed):
            with _paths.reading(file):
                if file.is_file():
                    return file
        remedy = 'hold back some lines of train for it'
        if name == 'train':
            remedy = 'what is trained on'
        raise UserError(
            f'data: {plain} (or {packed.name}) is missing: {remedy}; sets with both '
            f'languages there: {", ".join(sorted(self._names())) or "none"}'
        )

    def _pairs(self, name: str) -> Iterator[tuple[str, str]]:
        source = self._file(name, self.source)
        target = self._file(name, self.target)
        # All lines are counted before the first pair is given out: text whose lines are
        # shifted must train nothing.
        lines = self._count(source)
        if lines != self._count(target):
            raise _unequal(source, target)
        if not lines:
            raise UserError(f'data: {source} and {target} are empty')
        yield from zip(_lines(source), _lines(target), strict=True)

    def _count(self, path: Path) -> int:
        if path not in self._line_counts:
            with _open(path) as file:
                _, self._line_counts[path] = _scan(file)
        return self._line_counts[path]


def _scan(file: io.BufferedIOBase) -> tuple[bytes, int]:
    """The SHA-256 of a file, and its lines, of which the last may have no end."""
    digest = hashlib.sha256()
    lines = 0
    last = b'\n'
    while block := file.read(_BLOCK):
        digest.update(block)
        lines += block.count(b'\n')
        last = block[-1:]
    return digest.digest(), lines + (last != b'\n')


def _unequal(source: Path, target: Path) -> UserError:
    """The error of files of unequal length; that one is not UTF-8 comes before it."""
    source_lines = _length(_lines(source))
    target_lines = _length(_lines(target))
    return UserError(
        f'data: {source} has {source_lines:,} lines and {target} has '
        f'{target_lines:,}; line n of one must translate line n of the other'
    )


def _length(items: Iterable[Any]) -> int:
    number = 0
    for _ in items:
        number += 1
    return number


@contextlib.contextmanager
def _open(path: Path) -> Iterator[io.BufferedIOBase]:
    with (
        _paths.reading(path),
        gzip.open(path) if path.suffix == '.gz' else path.open('rb') as file,
    ):
        yield file


def _lines(path: Path) -> Iterator[str]:
    """The lines of a file; only `\\n` ends one: sentences may hold other separators."""
    number = 0
    try:
        with _open(path) as file:
            for number, line in enumerate(file, 1):
                text = line.decode('utf-8-sig' if number == 1 else 'utf-8')
                yield unicodedata.normalize('NFC', text.rstrip('\r\n'))
    except UnicodeDecodeError as error:
        raise UserError(
            f'data: {path}, line {number}, is not UTF-8 ({error.reason}, byte '
            f'{error.start + 1} of it); convert the file, for example with iconv'
        ) from None

"""Paths that users give: what is wrong with one is said on one line."""

import contextlib
import zlib
from collections.abc import Iterator
from pathlib import Path

from experiments.errors import UserError


def check(argument: str, text: str) -> None:
    """Raises UserError for what is part of no file's name; `argument`: 'text(path)'."""
    if any(character < ' ' for character in text) or not _is_unicode(text):
        raise UserError(
            f'data: {argument} is {text!r}: no name of a file holds such a character; '
            'leave it out'
        )


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def folder(argument: str, text: str) -> Path:
    """A folder that is there; `~` is the home directory.

    Raises:
      UserError: it is not there, is no folder, or cannot be looked at.
    """
    path = expanded(argument, text)
    with reading(path):
        is_folder = path.is_dir()
    if not is_folder:
        raise UserError(
            f'data: {path} is not a folder; give the one that holds the text'
        )
    return path


def expanded(argument: str, text: str) -> Path:
    """The path with the home directory in the place of `~`."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise UserError(
            f'data: {argument} is {text!r}: {str(error).rstrip(".")}; give the whole '
            'path'
        ) from None


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns the errors of reading a file, or of a damaged one, into UserErrors."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f'data: {path} cannot be read: {reason}') from None
    except (EOFError, zlib.error) as error:
        raise UserError(f'data: {path} cannot be read: {error}') from None

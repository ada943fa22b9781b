"""Parts that are done, on disk, until the whole text is: a start after a kill has them.

Each is a file of its own with its SHA-256 in front, so a damaged one is known by itself
and made again alone.
"""

import hashlib
from pathlib import Path

from experiments import storage
from experiments.data.tokenising import part
from experiments.data.tokenising.part import Part
from experiments.errors import UserError

_SUM = hashlib.sha256().digest_size  # bytes


def read(folder: Path, first: int, pairs: int) -> Part | None:
    """The part that begins at a pair, if it is there, undamaged and of so many pairs.

    Raises:
      UserError: the file is there and cannot be read; that does not mean it is damaged.
    """
    path = _path(folder, first)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f'cannot read {path}: {error.strerror or error}') from error
    data = content[_SUM:]
    if hashlib.sha256(data).digest() != content[:_SUM]:
        return None
    found = part.from_bytes(data)
    return found if found.pairs == pairs else None


def write(folder: Path, first: int, made: Part) -> None:
    """Keeps a part, complete or not at all.

    Raises:
      UserError: the disk is full.
    """
    data = part.to_bytes(made)
    storage.write(_path(folder, first), hashlib.sha256(data).digest() + data)


def _path(folder: Path, first: int) -> Path:
    return folder / f'{first:012}'

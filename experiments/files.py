"""Files that are there whole or not at all, whenever the process or the machine stops."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from experiments.errors import UserError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a path to write a file or folder to; once written, it takes the place of `path`.

    If the block raises, `path` stays what it was. A folder cannot replace one that holds files.

    Raises:
      UserError: the disk is full, or the place cannot be written to.
    """
    # The process id keeps apart two runs that fill the same cache.
    temporary = path.with_name(f'.{path.name}.{os.getpid()}.tmp')
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        commit(temporary, path)
    except OSError as error:
        raise UserError(f'cannot write {path}: {error.strerror or error}') from error
    finally:
        _remove(temporary)


def commit(temporary: Path, path: Path) -> None:
    """Renames a file or a folder when the disk holds all of it; then has it hold the name, too."""
    _sync(temporary)
    os.replace(temporary, path)
    _sync_entry(path.parent)


def write(path: Path, data: str | bytes) -> None:
    """Writes a file at once; text as UTF-8 with the line ends it has.

    Raises:
      UserError: as `replacing`.
    """
    with replacing(path) as temporary:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)


def write_json(path: Path, value: Any) -> None:
    """Writes readable JSON, equal bytes for equal values.

    Raises:
      UserError: as `replacing`.
    """
    write(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + '\n')


def read_json(path: Path) -> Any:
    """The value of a JSON file.

    Raises:
      UserError: the file cannot be read or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding='utf-8'))
    except OSError as error:
        raise UserError(f'cannot read {path}: {error.strerror or error}') from error
    except ValueError as error:
        raise UserError(f'{path} is not JSON: {error}') from error


def _sync(path: Path) -> None:
    """Has the disk hold a file, or all of a folder."""
    if path.is_dir():
        for entry in path.iterdir():
            _sync(entry)
        _sync_entry(path)
    else:
        with open(path, 'rb+') as file:
            os.fsync(file.fileno())


def _sync_entry(folder: Path) -> None:
    """Has the disk hold a folder's list of names. Windows cannot open a folder."""
    if os.name == 'posix':
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()

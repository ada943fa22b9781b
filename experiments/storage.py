"""Files that are complete or absent, whenever the process or the machine stops."""

import json
import math
import os
import platform
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from experiments.errors import UserError

# Errors of the system for a path where there is nothing.
MISSING = (FileNotFoundError, NotADirectoryError)
_LONGEST_SHOWN = 40  # characters of a value
# What no other host that writes to the same disk calls itself.
HOST = re.sub('[^A-Za-z0-9-]+', '_', platform.node()) or '_'
_TEMPORARY = re.compile(r'\..*\.([A-Za-z0-9_-]+)\.(\d+)\.tmp', re.DOTALL)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a path for a new file or folder, which replaces `path` at the block's end.

    If the block raises, `path` stays as it was. A folder cannot replace one that holds
    files.

    Raises:
      UserError: the disk is full, or the place cannot be written to.
    """
    # With host and process, two runs that fill the same cache do not collide.
    temporary = path.with_name(f'.{path.name}.{HOST}.{os.getpid()}.tmp')
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        commit(temporary, path)
    except OSError as error:
        raise UserError(f'cannot write {path}: {error.strerror or error}') from error
    finally:
        remove(temporary)


def commit(temporary: Path, path: Path) -> None:
    """Renames a file or a folder once all of it is on disk, and then syncs the name."""
    _sync(temporary)
    os.replace(temporary, path)
    _sync_entry(path.parent)


def write(path: Path, data: str | bytes) -> None:
    """Writes a file, complete or not at all; text as UTF-8 with the line ends it has.

    Raises:
      UserError: as `replacing`.
    """
    with replacing(path) as temporary:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)


def write_json(path: Path, value: Any) -> None:
    """Writes readable JSON, equal bytes for equal values.

    Raises:
      UserError: as `replacing`; or a text of the value is not UTF-8.
    """
    try:
        data = json_text(value).encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f'cannot write {path}: {error.object!r} is not UTF-8'
        ) from error
    write(path, data)


def json_text(value: Any) -> str:
    """Readable JSON of a value, with null for a number that is not finite."""
    value = _finite(value)
    text = json.dumps(
        value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False
    )
    return text + '\n'


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value


def read_json(path: Path) -> Any:
    """The value of a JSON file.

    Raises:
      UserError: the file cannot be read or is not JSON.
    """
    try:
        return parse_json(path.read_bytes())
    except OSError as error:
        raise UserError(f'cannot read {path}: {error.strerror or error}') from error
    except ValueError as error:
        raise UserError(f'{path} is not JSON: {error}') from error


def parse_json(data: bytes) -> Any:
    """The value of UTF-8 JSON, which can be written as such again.

    Raises:
      ValueError: it is not JSON, or nested too deep, or holds half a surrogate pair.
    """
    try:
        value = json.loads(data.decode())
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError('nested too deep') from None
    return value


def shown(value: Any) -> str:
    """A value of JSON as a message shows it: on one line, and cut where it is long."""
    text = json.dumps(value, ensure_ascii=False)
    if len(text) > _LONGEST_SHOWN:
        return f'{text[:_LONGEST_SHOWN]}…'
    return text


def exists(path: Path) -> bool:
    """Whether there is a file or folder.

    Raises:
      UserError: the system does not say: no permission, too long a name, a failing
        disk.
    """
    try:
        path.stat()
    except MISSING:
        return False
    except OSError as error:
        raise UserError(f'cannot read {path}: {error.strerror}') from error
    return True


def obstacle(path: Path) -> str:
    """Why nothing can be written at a path, folders to make included; '' if it can.

    Raises:
      UserError: as `exists`.
    """
    place = path.absolute()
    while not exists(place):
        place = place.parent
    effective = os.access in os.supports_effective_ids
    if not place.is_dir():
        return f'{place} is not a directory'
    if not os.access(place, os.W_OK | os.X_OK, effective_ids=effective):
        return f'there is no permission to write in {place}'
    return ''


def sweep(folder: Path, held: bool, writing: bool = False) -> None:
    """Removes the temporary files that `replacing` left when a process was killed.

    Args:
      held: whether this process alone writes there; if not, what a living process may
        be writing stays.
      writing: whether this process is writing there now; if not, what bears its number
        is of an earlier one.
    """
    with suppress(OSError):
        for entry in os.scandir(folder):
            match = _TEMPORARY.fullmatch(entry.name)
            if not match:
                continue
            host, process = match[1], int(match[2])
            is_own = (host, process) == (HOST, os.getpid())
            in_use = writing if is_own else _lives(host, process)
            if held or not in_use:
                remove(Path(entry.path))


def _lives(host: str, process: int) -> bool:
    if host != HOST or os.name != 'posix':
        return True  # nobody can know; and on Windows os.kill would end it
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _sync(path: Path) -> None:
    """Makes sure that a file, or all of a folder, is on disk."""
    if path.is_dir():
        for entry in path.iterdir():
            _sync(entry)
        _sync_entry(path)
    else:
        with open(path, 'rb+') as file:
            os.fsync(file.fileno())


def _sync_entry(folder: Path) -> None:
    """Makes sure that a folder's list of names is on disk; Windows has no way to."""
    if os.name == 'posix':
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove(path: Path) -> None:
    """Removes a file, or a folder with all in it, as far as possible."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()

"""Atomic file writes, reads of JSON, and locks: a file is complete or absent."""

import contextlib
import hashlib
import json
import os
import platform
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from experiments.errors import UserError

try:
    import fcntl
except ImportError:  # on Windows, which has no fcntl
    fcntl = None

_BYTE_ORDER_MARK = '\ufeff'


class InUse(UserError):
    """Another process holds the lock."""


@contextlib.contextmanager
def as_user_error(action: str, path: Path) -> Iterator[None]:
    """Converts system errors: "cannot read …/config.json: Permission denied"."""
    try:
        yield
    except (OSError, UnicodeError) as error:
        reason = getattr(error, 'strerror', None) or error
        raise UserError(f'cannot {action} {path}: {reason}') from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path whose file or folder then replaces `path` atomically.

    If the block raises, nothing changes. A folder cannot replace a nonempty folder.
    """
    temporary = path.with_name(f'.{path.name}.{uuid.uuid4().hex}.tmp')
    folders = path.absolute().parents
    missing = [folder for folder in folders if not os.path.lexists(folder)]
    try:
        with as_user_error('write', path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            sync(temporary)
            os.replace(temporary, path)
    except BaseException:
        remove(temporary)
        with contextlib.suppress(OSError):  # another process has written there
            for folder in missing:
                folder.rmdir()
        raise


def decode_line(line: bytes) -> str:
    """Returns a line of UTF-8 text without its line end and byte order marks.

    Raises ValueError, whose message has no subject, if it isn't UTF-8.
    """
    reason = 'zero bytes, as UTF-16 has' if b'\0' in line else ''
    text = ''
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        reason = f'{error.reason}, byte {error.start + 1} of it'
    if reason:
        raise ValueError(f'is not UTF-8 ({reason}). Convert it, as with iconv.')
    return text.replace(_BYTE_ORDER_MARK, '').rstrip('\r\n')


def check_line_ends(only_line: bytes) -> None:
    """Raises ValueError if a file's only line contains line ends of CR alone."""
    if b'\n' not in only_line and b'\r' in only_line.rstrip(b'\r'):
        raise ValueError(
            "has line ends of CR alone. Convert them, for example with tr '\\r' '\\n'."
        )


def remove_leftovers(folder: Path, pattern: str = '.*.tmp') -> None:
    """Removes leftovers of `replacing`. No other process may be writing."""
    for path in folder.glob(pattern):
        remove(path)


def write(path: Path, data: str | bytes) -> None:
    """Writes a file atomically, text as UTF-8 with unchanged line ends."""
    with replacing(path) as temporary:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)


def write_output(path: Path, data: str | bytes) -> None:
    """Writes a file, link, device or pipe that the user named."""
    if path.is_symlink() or (exists(path) and not path.is_file()):
        with as_user_error('write', path):
            path.write_bytes(data.encode() if isinstance(data, str) else data)
    else:
        write(path, data)


def append(path: Path, data: bytes) -> None:
    """Appends data to a file. It survives a kill, but not a power cut: see `sync`."""
    with as_user_error('write', path), path.open('ab') as file:
        file.write(data)


def write_json(path: Path, value: Any) -> None:
    """Writes indented JSON atomically. Equal values give equal bytes."""
    write(path, json_text(value))


def json_text(value: Any) -> str:
    """Returns indented JSON of a value, with null for non-finite numbers."""
    finite = json.loads(json.dumps(value), parse_constant=lambda name: None)
    return json.dumps(finite, indent=2, sort_keys=True, ensure_ascii=False) + '\n'


def read_json(path: Path, kind: Any = Any, fix: str = '') -> Any:
    """Returns the value of a JSON file, after `check_type`."""
    with as_user_error('read', path):
        data = path.read_bytes()
    try:
        value = msgspec.json.decode(data)
    except (ValueError, RecursionError) as error:
        raise UserError(f'{path} is not JSON: {error}. {fix}'.rstrip()) from error
    check_type(path, value, kind, fix)
    return value


def check_type(
    file: object, value: Any, kind: Any, fix: str = '', within: str = ''
) -> None:
    """Raises UserError if a value from JSON differs from a type that msgspec knows.

    Entries that a `TypedDict` or `Struct` lacks may have any value.

    Args:
      file: The file of the value, and its line, for the message.
      fix: How to repair damage, for the message.
      within: Where the value is in the file, such as `evaluations.test`.
    """
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).replace('`', '').partition(' - at ')
        field = f'{within}{place.removeprefix("$")}'.lstrip('.') or 'the content'
        problem = f'{problem[0].lower()}{problem[1:]}'
        raise UserError(f'{file}: {field}: {problem}. {fix}'.rstrip()) from None


def sha256(path: Path) -> str:
    with as_user_error('read', path), path.open('rb') as file:
        return hashlib.file_digest(file, 'sha256').hexdigest()


def cache_folder(folder: Path, make: Callable[[Path], None]) -> None:
    """Makes a folder of a cache, unless it exists.

    One process makes the folder while others wait. `make` writes its files.
    """
    if exists(folder):
        return
    with lock(folder.with_name(f'.{folder.name}.lock'), wait=True):
        if exists(folder):
            return  # another process made it while this one waited
        remove_leftovers(folder.parent, f'.{folder.name}.*.tmp')
        with replacing(folder) as draft:
            draft.mkdir()
            make(draft)


@contextlib.contextmanager
def lock(file: Path, wait: bool = False) -> Iterator[None]:
    """Holds the lock of a file, which is never removed.

    The lock ends with the process. It has no effect on file systems without locks.
    Raises InUse if another process holds it, unless `wait` is True.
    """
    with as_user_error('write', file):
        file.parent.mkdir(parents=True, exist_ok=True)
        opened = open(file, 'a+', encoding='utf-8')
    with opened:
        if not _lock(opened, wait):
            opened.seek(0)
            owner = opened.read() or 'another process'
            raise InUse(
                f'{file.parent} is in use by {owner}. Wait for it, stop it, or choose '
                'another --workdir.'
            )
        opened.truncate(0)
        opened.write(f'process {os.getpid()} on {platform.node()}')
        opened.flush()
        yield


def is_free(file: Path) -> bool:
    """Returns whether no process holds the lock of a file."""
    if not file.exists():
        return True
    with as_user_error('read', file):
        opened = open(file, encoding='utf-8')
    with opened:
        return _lock(opened, wait=False)


def _lock(file: IO[str], wait: bool) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks
    return True


def exists(path: Path) -> bool:
    """Returns whether a file or folder exists; UserError if the system cannot tell."""
    with as_user_error('read', path):
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
    return True


def run_title(path: Path) -> str:
    """Returns the name of a run; in a sweep it is `table3_small/base/seed=1`."""
    parts = path.absolute().parts
    return '/'.join(parts[-3:]) if parts[-1].startswith('seed=') else parts[-1]


def is_file_name(name: str) -> bool:
    return name not in ('', '.', '..') and not set('/\\\0').intersection(name)


def obstacle(path: Path) -> str:
    """Returns why `path`, called "it", and its parents cannot be written, or ''.

    It creates the missing folders, but in a temporary one that it removes.
    """
    nearest = path.absolute()
    while not exists(nearest):
        nearest = nearest.parent
    name = 'it' if nearest == path.absolute() else nearest
    effective = os.access in os.supports_effective_ids
    if not nearest.is_dir():
        return f'{name} is not a directory'
    if not os.access(nearest, os.W_OK | os.X_OK, effective_ids=effective):
        return f'there is no permission to write in {name}'
    missing = path.absolute().relative_to(nearest)
    try:
        # Permissions don't show what file systems such as /proc refuse to create.
        with tempfile.TemporaryDirectory('.tmp', '.', nearest) as trial:
            (Path(trial) / missing).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f'no folder can be created in {name}: {error.strerror}'
    return ''


def remove(path: Path) -> None:
    """Removes a file, or a folder and its content, as far as possible."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.unlink()


def sync(path: Path) -> None:
    """Flushes a file or a folder, to survive a power cut."""
    if os.name != 'posix':
        return  # Windows cannot sync folders
    for entry in [*path.rglob('*'), path]:
        descriptor = os.open(entry, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

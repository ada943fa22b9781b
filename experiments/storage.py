"""Atomic file writes, checksums and locks: a file is complete or absent."""

import contextlib
import errno
import hashlib
import io
import json
import os
import platform
import re
import shutil
import stat
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import IO, Any

from experiments.errors import UserError, warn

try:
    import fcntl
except ImportError:  # Windows, where there are no locks
    fcntl = None

SUMS = 'SHA256SUMS'  # checksums of a folder's files, in the format of `sha256sum`
_BYTE_ORDER_MARK = '\ufeff'
# A line: a checksum and the name of a file in the same folder.
_SUM = re.compile(r'([0-9a-f]{64})  (?!\.{1,2}$)([^/\0]{1,255})')
_DEEPEST = 100  # levels of JSON
LONGEST_LINE = 2**24  # bytes; readers never hold more of a line
_LARGEST = 2**30  # bytes of a file that is read at once


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

    Raises:
      ValueError: The line isn't UTF-8, or is longer than `LONGEST_LINE`. The message
        has no subject.
    """
    if len(line) > LONGEST_LINE:
        raise ValueError(f'is longer than {LONGEST_LINE:,} bytes. Split it.')
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


def check_entries(root: Path, folders: Collection[str]) -> None:
    """Raises UserError for a pipe or device in a folder, or a link that leaves it.

    Others may have written the folder. A link could lead to any file of this user, and
    a reader of a pipe waits forever. The folder itself may be a link.

    Args:
      folders: Names of folders in `root` whose content is also checked.
    """
    real_root = os.path.realpath(root)
    for parent, names, files in os.walk(root):
        for path in map(Path(parent).joinpath, [*names, *files]):
            _check_entry(path, real_root)
        if Path(parent) == root:
            names[:] = [name for name in names if name in folders]


def _check_entry(path: Path, root: str) -> None:
    with as_user_error('read', path):
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:  # removed meanwhile
            return
    if stat.S_ISLNK(mode):
        if not Path(os.path.realpath(path)).is_relative_to(root):
            refuse_link(path)
    elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UserError(f'{path}: is a pipe or device. Remove it.')


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
    with as_user_error('write', path), open_end(path) as file:
        file.write(data)


def open_end(path: Path) -> BufferedWriter:
    """Opens a file for appending."""
    refuse_link(path)
    with as_user_error('write', path):
        return open(path, 'ab', opener=_open_no_link)


def write_json(path: Path, value: Any) -> None:
    """Writes indented JSON atomically. Equal values give equal bytes."""
    write(path, json_text(value))


def json_text(value: Any) -> str:
    """Returns indented JSON of a value, with null for non-finite numbers."""
    finite = json.loads(json.dumps(value), parse_constant=lambda name: None)
    return json.dumps(finite, indent=2, sort_keys=True, ensure_ascii=False) + '\n'


def json_sha256(value: Any) -> str:
    return hashlib.sha256(json_text(value).encode()).hexdigest()


def open_regular(path: Path) -> BufferedReader:
    """Opens a file for reading; raises OSError for a pipe, which could block."""
    return open(path, 'rb', opener=_open_regular)


def read_bytes(path: Path) -> bytes:
    """Reads a regular file; raises OSError for one of more than 1 GiB."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > _LARGEST:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        return file.read()


def _open_regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | getattr(os, 'O_NONBLOCK', 0))
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # Python refuses folders
        os.close(descriptor)
        raise OSError(errno.EINVAL, 'Not a regular file')
    return descriptor


def read_json(path: Path) -> Any:
    with as_user_error('read', path):
        data = read_bytes(path)
    try:
        return parse_json(data)
    except ValueError as error:
        raise UserError(f'{path} is not JSON: {error}') from error


def parse_json(text: str | bytes, **options: Any) -> Any:
    """Returns the value of a JSON text, with the options of `json.loads`.

    Raises ValueError if it is invalid, or nested deeper than `_DEEPEST` levels.
    """
    try:
        value = json.loads(text, **options)
        is_deep = _nests_deeper(value, _DEEPEST)
    except RecursionError:
        is_deep = True
    if is_deep:
        raise ValueError(f'it nests deeper than {_DEEPEST} levels')
    return value


def _nests_deeper(value: Any, levels: int) -> bool:
    nested = [value]
    for _ in range(levels + 1):
        nested = [child for parent in nested for child in _children(parent)]
        if not nested:
            return False
    return True


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def lines(path: Path) -> Iterator[bytes]:
    """Yields the lines of a file, with line feeds."""
    with as_user_error('read', path), open_regular(path) as file:
        for number, line in enumerate(bounded_lines(file), 1):
            if len(line) > LONGEST_LINE:
                where = f'{path}, line {number}'
                raise UserError(f'{where}: longer than {LONGEST_LINE:,} bytes')
            yield line


def bounded_lines(file: io.BufferedIOBase) -> Iterator[bytes]:
    """Yields the lines of a file; splits lines longer than `LONGEST_LINE`."""
    return iter(lambda: file.readline(LONGEST_LINE + 1), b'')


def sha256(path: Path) -> str:
    with as_user_error('read', path), open_regular(path) as file:
        return hashlib.file_digest(file, 'sha256').hexdigest()


def write_sums(sums: Path, paths: Iterable[Path]) -> None:
    lines = [f'{sha256(path)}  {path.name}\n' for path in sorted(paths)]
    write(sums, ''.join(lines))


def read_sums(sums: Path) -> dict[str, str]:
    """Returns checksums by name, without damaged lines; {} if `sums` is missing."""
    found = filter(None, map(_SUM.fullmatch, _sum_lines(sums)))
    return {match[2]: match[1] for match in found}


def _sum_lines(sums: Path) -> list[str]:
    if not exists(sums):
        return []
    with as_user_error('read', sums):
        return read_bytes(sums).decode(errors='replace').split('\n')[:-1]


def damage(sums: Path) -> str:
    """Returns what is wrong with the files listed in `sums`, or ''.

    Raises UserError if a file exists but cannot be read now.
    """
    expected = read_sums(sums)
    if len(expected) < len(_sum_lines(sums)):
        return f'{sums.name} has a line that is not a checksum'
    for name, total in expected.items():
        path = sums.with_name(name)
        if not exists(path):
            return f'{name} is missing'
        if sha256(path) != total:
            return f'{name} does not match its checksum'
    return '' if expected else f'{sums.name} is missing or empty'


def cache_folder(folder: Path, make: Callable[[Path], None]) -> None:
    """Makes a folder of a cache, unless it exists and its checksums match.

    One process makes the folder while others wait. `make` writes its files.
    """
    if not damage(folder / SUMS):
        return
    with lock(folder.with_name(f'.{folder.name}.lock'), wait=True):
        wrong = damage(folder / SUMS)
        if not wrong:
            return  # another process made it while this one waited
        remove_leftovers(folder.parent, f'.{folder.name}.*.tmp')
        if exists(folder):
            warn(f'{folder} is damaged ({wrong}); rebuilding it')
            remove(folder)
        with replacing(folder) as draft:
            draft.mkdir()
            make(draft)
            write_sums(draft / SUMS, draft.iterdir())


@contextlib.contextmanager
def lock(file: Path, wait: bool = False) -> Iterator[None]:
    """Holds the lock of a file, which is never removed.

    The lock ends with the process. It has no effect on file systems without locks.
    Raises InUse if another process holds it, unless `wait` is True.
    """
    with as_user_error('write', file):
        file.parent.mkdir(parents=True, exist_ok=True)
        refuse_link(file)
        opened = open(file, 'a+', encoding='utf-8', opener=_open_no_link)
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
        refuse_link(file)
        opened = open(file, encoding='utf-8', opener=_open_no_link)
    with opened:
        return _lock(opened, wait=False)


def refuse_link(path: Path) -> None:
    """Raises UserError for a link.

    Written by others, it could lead to any file of this user.
    """
    if path.is_symlink():
        raise UserError(
            f'{path} is a link. Remove it, so that its target stays unchanged.'
        )


def _open_no_link(path: str, flags: int) -> int:
    # Windows has neither flag. Without the second one, a pipe would wait for a writer.
    for name in ('O_NOFOLLOW', 'O_NONBLOCK'):
        flags |= getattr(os, name, 0)
    return os.open(path, flags, 0o666)


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
    """Returns why `path`, called "it", and its parents cannot be written, or ''."""
    nearest = path.absolute()
    while not exists(nearest):
        nearest = nearest.parent
    name = 'it' if nearest == path.absolute() else nearest
    effective = os.access in os.supports_effective_ids
    if not nearest.is_dir():
        return f'{name} is not a directory'
    if not os.access(nearest, os.W_OK | os.X_OK, effective_ids=effective):
        return f'there is no permission to write in {name}'
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

"""The lock on a run's directory, so that one process at a time uses it."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from experiments.errors import UserError

try:
    import fcntl
except ImportError:  # Windows, where nothing keeps two processes apart
    fcntl = None


class InUse(UserError):
    """Another process uses the directory."""


@contextmanager
def locked(path: Path, optional: bool) -> Iterator[None]:
    """Locks `path/.lock`; the system unlocks it when the process ends, however it ends.

    Args:
      path: the directory, which is made if it is not there.
      optional: whether to go on without a lock where the directory cannot be written
        to.

    Raises:
      InUse: another process has the lock.
      UserError: the directory cannot be written to.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        file = open(path / '.lock', 'a+', encoding='utf-8')
    except OSError as error:
        if optional:
            yield
            return
        raise UserError(
            f'cannot write to {path}: {error.strerror}; name another directory with '
            '--workdir'
        ) from error
    with file:
        _lock(file, path)
        yield


def _lock(file: TextIO, path: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read() or 'another process'
        raise InUse(
            f'{path} is in use by {holder}: let it end, stop it, or choose another '
            '--workdir'
        ) from None
    except OSError:
        return  # a file system without locks
    file.truncate(0)
    file.write(f'process {os.getpid()} on {platform.node()}')
    file.flush()


def is_free(path: Path) -> bool:
    """Whether no process has the lock of a directory, as far as the system knows."""
    if fcntl is None or not (path / '.lock').exists():
        return True
    with open(path / '.lock', encoding='utf-8') as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True
    return True

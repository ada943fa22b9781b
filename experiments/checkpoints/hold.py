"""Locks a folder that is being read, so that the training run does not remove it.

The lock is on a file of the folder that is opened to read: it needs no permission to
write, leaves nothing behind, and the system releases it however the process ends.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from experiments import storage
from experiments.errors import UserError

try:
    import fcntl
except ImportError:  # Windows: a removal is noticed by `reading`, and not prevented
    fcntl = None


_POLL = 0.2  # seconds between two attempts to get a lock


class Gone(Exception):
    """The folder was removed, or replaced by another, before it was read to its end."""


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Keeps the folder of `file` from being removed until the block ends.

    Where the file system has no locks the folder may be removed all the same. Then what
    the block has read or raised is meaningless.

    Raises:
      Gone: the folder was not there, or was removed.
    """
    try:
        held = open(file, 'rb')
    except OSError:
        # The block will report what is wrong with it, unless the folder is gone.
        held = None
    folder = _identity(file.parent)
    if folder is None:
        _close(held)
        raise Gone
    try:
        if held is not None:
            _lock(held, exclusive=False)
        yield
    except Exception as error:
        if _identity(file.parent) != folder:
            raise Gone from error
        raise
    else:
        if _identity(file.parent) != folder:
            raise Gone
    finally:
        _close(held)


@contextmanager
def removing(file: Path) -> Iterator[bool]:
    """Yields whether nobody reads the folder of `file`; new readers wait meanwhile."""
    try:
        held = open(file, 'rb+')
    except OSError:
        yield False
        return
    with held:
        yield _lock(held, exclusive=True)


@contextmanager
def alone(file: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Waits until no other process is in a block with this file, and enters.

    Where the file system has no locks nobody waits. The file stays.

    Args:
      file: is made, with its folder, if it is not there.
      waiting: is called now and then meanwhile; what it raises ends the waiting.

    Raises:
      UserError: the file cannot be made.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        held = open(file, 'ab')
    except OSError as error:
        raise UserError(f'cannot write {file}: {error.strerror or error}') from error
    with held:
        while not _lock(held, exclusive=True):
            waiting()
            time.sleep(_POLL)
        yield


def _lock(file: BinaryIO, exclusive: bool) -> bool:
    """An exclusive lock is taken at once or not at all; a shared one is waited for."""
    if fcntl is None:
        return True
    kind = fcntl.LOCK_SH
    if exclusive:
        kind = fcntl.LOCK_EX | fcntl.LOCK_NB
    try:
        fcntl.flock(file, kind)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks
    return True


def _identity(folder: Path) -> tuple[int, int] | None:
    """What distinguishes a folder from another one of its name."""
    try:
        status = os.stat(folder)
    except storage.MISSING:
        return None
    except OSError:
        return (-1, -1)  # it may be there
    return status.st_dev, status.st_ino


def _close(file: BinaryIO | None) -> None:
    if file is not None:
        file.close()

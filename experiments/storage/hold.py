"""Holds a folder that is read, so that the run that trains does not remove it meanwhile.

The lock is on a file of the folder, opened to read: it takes no right to write, nothing is left
behind, and the system lets go of it when the process ends, however it ends.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from experiments.storage import files

try:
    import fcntl
except (
    ImportError
):  # Windows: there `reading` notices a removal, and nothing prevents it
    fcntl = None


class Gone(Exception):
    """The folder was removed, or another took its name, before it was read to its end."""


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Keeps the folder of `file` from being removed until the block ends.

    Where the file system has no locks the folder may go; then whatever the block raised or read
    counts for nothing.

    Raises:
      Gone: it was not there, or went.
    """
    try:
        held = open(file, 'rb')
    except OSError:
        # What is wrong with it, the block will say; unless all of it is gone.
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
    """Whether nobody reads the folder of `file`; who comes now waits until the block ends."""
    try:
        held = open(file, 'rb+')
    except OSError:
        yield False
        return
    with held:
        yield _lock(held, exclusive=True)


def _lock(file: BinaryIO, exclusive: bool) -> bool:
    """Exclusively at once or not at all; shared as soon as may be."""
    if fcntl is None:
        return True
    kind = fcntl.LOCK_EX | fcntl.LOCK_NB if exclusive else fcntl.LOCK_SH
    try:
        fcntl.flock(file, kind)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks
    return True


def _identity(folder: Path) -> tuple[int, int] | None:
    """What tells a folder from another that takes its name."""
    try:
        status = os.stat(folder)
    except files.MISSING:
        return None
    except OSError:
        return (-1, -1)  # there, as far as is known
    return status.st_dev, status.st_ino


def _close(file: BinaryIO | None) -> None:
    if file is not None:
        file.close()

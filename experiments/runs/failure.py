"""The error that ended training: `failure.json` in a run's directory."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from experiments import errors, storage
from experiments.command_line.stopping import Stopped
from experiments.errors import UserError
from experiments.runs import directory, entries

NAME = 'failure.json'
# Written in advance, because renaming works even on a full disk.
_RESERVED_FILE = '.failure.json'
DIVERGED = 'diverged'
FAILED = 'failed'


class Diverged(UserError):
    """A loss or gradient is not finite."""

    def __init__(self, step: int, message: str):
        super().__init__(message)
        self.step = step


@contextmanager
def record_errors(path: Path) -> Iterator[None]:
    """Records an error of the block in the run's directory, except a stop.

    Records nothing if the run already has its result.
    """
    reserve = path / _RESERVED_FILE
    storage.write_json(reserve, _entry('failure.json could not be written'))
    storage.remove(path / NAME)
    try:
        yield
    except Stopped:
        raise
    except Exception as error:
        if not storage.exists(path / directory.RESULT):
            try:
                write_failure(path, error)
            except UserError:  # the disk is full, which may have caused the error
                with suppress(OSError):
                    os.replace(reserve, path / NAME)
        raise
    finally:
        storage.remove(reserve)


def write_failure(path: Path, error: Exception) -> None:
    """Writes `status`, `step` and `message` of the error that ended training.

    The status is `diverged` for `Diverged`, else `failed` with a null step.
    """
    message = str(error) or type(error).__name__
    if not isinstance(error, UserError):
        message = f'{type(error).__name__}: {error}'
        message, _ = errors.component_error(error) or (message, '')
    entry = _entry(errors.line(UserError(message)))
    if isinstance(error, Diverged):
        entry |= {'status': DIVERGED, 'step': error.step}
    storage.write_json(path / NAME, entry)


def _entry(message: str) -> dict[str, Any]:
    return {'status': FAILED, 'step': None, 'message': message}


def read_failure(path: Path) -> dict[str, Any] | None:
    """Returns the recorded failure, if an error ended training."""
    file = path / NAME
    if not storage.exists(file):
        return None
    fix = 'Remove the file, and rerun the command to resume the run.'
    return storage.read_json(file, entries.Failure, fix)

"""How several processes end: an error of one, or its death, ends all.

An error is one line, which the first process prints, and one exit status for all.
"""

import contextlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from typing import NoReturn

from experiments.errors import UserError, line
from experiments.runtime.processes import group, lifelines, place

_GRACE = 10  # seconds in which an error of all comes up in each by itself
_LEAVE = 15  # seconds in which all come to end after an error
_LAST = 300  # seconds in which all come to end after their work

_over = threading.Event()
_ending = threading.Lock()


@contextlib.contextmanager
def together(argv: Sequence[str]) -> Iterator[None]:
    """Finds the place of this process; from then on an error in one ends all.

    Processes that were connected end with the block: see `leave`.

    Raises:
      UserError: the flags name no place; or of the block, in a process alone.
    """
    group.join(place.find(argv))
    if group.count() == 1:
        yield
        return
    try:
        yield
    except UserError as error:
        _end(line(error), 2)
    except Exception as error:
        traceback.print_exc()
        _end(f'{type(error).__name__}: {line(UserError(str(error)))}', 1)
    if group.is_connected():
        leave()
        _exit(0)


def connect() -> None:
    """Connects the processes; this one then hears of others' errors and deaths."""
    group.start()
    lifelines.start(group.host_of_first(), _died)
    threading.Thread(target=_watch, daemon=True).start()


def leave(seconds: float = _LAST) -> None:
    """Waits for all to end, the first last: jax aborts those that it leaves alone.

    The process is to end at once then. At the end of Python jax has a barrier of its
    own, which all would have to come to, and no order behind it.
    """
    if group.is_connected():
        with contextlib.suppress(RuntimeError):
            group.wait_to_leave(seconds)
            group.tell('left', '')
    _over.set()
    if group.is_connected() and group.is_first():
        time.sleep(0.5)  # for those that have no connection here
        lifelines.wait_for_ends(_LEAVE)


@contextlib.contextmanager
def deaths_are_told() -> Iterator[None]:
    """Has an error that another process's death caused say whose; ends the process."""
    try:
        yield
    except RuntimeError as error:
        if group.count() == 1:
            raise
        dead = _silent_processes()
        if not dead:
            raise
        living = set(range(group.count())) - set(dead)
        if group.index() == min(living):
            _print(f'{_of_deaths(dead)} ({line(UserError(str(error)))})')
        os._exit(1)


def _silent_processes() -> list[int]:
    """Those that do not tell, soon after an error, that they came upon it too."""
    try:
        group.tell('alive', '')
        time.sleep(_GRACE)
        alive = group.told('alive')
    except RuntimeError:
        return [0]  # by which the others are told
    return sorted(set(range(group.count())) - set(alive))


def _died(index: int | None) -> None:
    """Ends this process, for another one has died; None where that was told already."""
    # Of an error the first process can be asked. Where it is gone itself, jax is about
    # to abort this one.
    if _over.is_set() or (group.is_first() and _has_said_why(index)):
        return
    with _ending:
        # Of the death of the first the second tells, of others the first.
        if index is not None and group.index() == (1 if index == 0 else 0):
            _print(_of_deaths([index]))
        if group.is_first():
            lifelines.tell()
        os._exit(1)


def _has_said_why(index: int | None) -> bool:
    return bool(group.told('error')) or index in group.told('left')


def _of_deaths(dead: Sequence[int]) -> str:
    names = ', '.join(map(group.name, dead))
    return f'{names} died; the same command goes on from the last checkpoint'


def _watch() -> None:
    """Ends this process once another one has told an error."""
    while not _over.wait(1):
        with contextlib.suppress(RuntimeError):
            if group.told('error'):
                # An error of all comes up here as well, and ends this process itself.
                time.sleep(_GRACE)
                _end('', 2)


def _end(text: str, status: int) -> NoReturn:
    """Tells all of an error, and ends this process; the first prints it.

    Args:
      text: empty where another process told one.
      status: of the process that has an error of its own.
    """
    with _ending:
        if text and group.is_first():
            _print(text)
        try:
            group.start()  # the others may be waiting, or yet to begin
            status = _tell_and_hear(text, status)
        except (UserError, RuntimeError):
            if text and not group.is_first():
                _print(text)  # for the first process is not there to do so
        leave(_LEAVE)
        _exit(status)


def _tell_and_hear(text: str, status: int) -> int:
    """Tells an error of this process, if it has one → the status to end with.

    The first process prints that of another where it has none itself.
    """
    if text:
        group.tell('error', json.dumps([status, text]))
        return status
    index, told = min(group.told('error').items())
    status, text = json.loads(told)
    if group.is_first():
        _print(f'{group.name(index)}: {text}')
    return status


def _exit(status: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _print(text: str) -> None:
    print('error:', text, file=sys.stderr, flush=True)

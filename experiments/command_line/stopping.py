"""Stopping on request: SIGTERM and Ctrl-C end a run soon, and it loses nothing."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from typing import NoReturn, TypeVar

T = TypeVar('T')

_POLL = 0.1  # seconds between two checks whether a stop was asked for
_GRACE = 0.5  # seconds in which work may end by itself, and remove temporary files


class Stopped(Exception):
    """The run was asked to stop. The message says what was saved, if anything was."""


class Stop:
    """Whether a run was asked to stop.

    Python runs signal handlers in the main thread, between two of its instructions. So
    none runs while that thread compiles or waits for a device; and if a handler raised,
    the error could appear at any place. Therefore the handler only notes the signal.
    The main thread checks for it after each step of training. Long work is done in
    another thread (`wait_for`), for which the main thread waits only until a stop is
    asked for.
    """

    def __init__(self) -> None:
        self._signal: int | None = None
        self._agreed: Callable[[], bool] | None = None

    @property
    def asked(self) -> bool:
        return self._signal is not None

    @property
    def signal(self) -> int | None:
        """The signal that asked for a stop."""
        return self._signal

    @contextmanager
    def listening(self, *others: int) -> Iterator[None]:
        """Has SIGTERM and Ctrl-C ask for a stop; a second Ctrl-C ends the process.

        Args:
          others: more signals that ask for one.
        """
        numbers = (signal.SIGTERM, signal.SIGINT, *others)
        before = {number: signal.signal(number, self._ask) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def agree(self, agreed: Callable[[], bool]) -> None:
        """From now on this process stops only where several do so together.

        Args:
          agreed: whether they stop here, because one of them got SIGTERM; each asks it
            as often as the others.
        """
        self._agreed = agreed

    def due(self) -> bool:
        """Whether to stop here: a place that several processes come to alike."""
        if self._agreed is not None and not self.asked and self._agreed():
            self._signal = signal.SIGTERM
        return self.asked

    def check(self) -> None:
        """Raises Stopped if a stop was asked for; work calls it where it can end."""
        if self.asked:
            raise Stopped

    def wait_for(self, work: Callable[[], T]) -> T:
        """Does some work in a thread, and returns what it returns.

        Raises:
          Stopped: a stop was asked for. The thread goes on until `leave` ends it.
        """
        self.check()
        future: Future[T] = Future()
        threading.Thread(target=_do, args=(work, future), daemon=True).start()
        return self.result(future)

    def result(self, future: Future[T]) -> T:
        """The result of a future; raises as `wait_for` does."""
        while not wait([future], _POLL).done:
            if self.asked and self._agreed is None:
                wait([future], _GRACE)
                raise Stopped
        return future.result()

    def leave(self) -> NoReturn:
        """Ends the process at once, with the status that a shell gives to a signal.

        An orderly exit would wait for a thread that compiles, which nothing can end.
        """
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(128 + (self._signal or signal.SIGTERM))

    def _ask(self, number: int, frame: object) -> None:
        if self.asked and number == signal.SIGINT:
            os._exit(128 + number)
        if self._agreed is None:
            self._signal = number
        elif number == signal.SIGINT:
            # Of SIGTERM the others hear; a second Ctrl-C ends the process.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)


def _do(work: Callable[[], T], future: Future[T]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)

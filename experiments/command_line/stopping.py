"""Stops by Ctrl-C, SIGTERM and SIGHUP, without loss of progress.

Outside of `delay_stop`, a signal ends the process at once, also while it compiles: the
system does it, because Python would run a handler only after the C code.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_HANGUP: signal.Signals | None = getattr(signal, 'SIGHUP', None)  # not on Windows

_received: int | None = None  # the signal that requested a stop


class Stopped(Exception):
    """The end of training by a stop request; says where its state is saved.

    The process should end soon, by `end`.
    """


def watch() -> None:
    """Lets SIGTERM and Ctrl-C end the process at once.

    SIGHUP, as from a closed ssh session, counts as SIGTERM. Under `nohup` it stays
    ignored.
    """
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    if _HANGUP is not None and signal.getsignal(_HANGUP) != signal.SIG_IGN:
        terminals = [number for number in (1, 2) if os.isatty(number)]
        signal.signal(_HANGUP, lambda *_: _hang_up(terminals))


def _hang_up(terminals: Sequence[int]) -> None:
    # Printing to a closed terminal would fail before the state is saved.
    for terminal in terminals:
        os.dup2(os.open(os.devnull, os.O_WRONLY), terminal)
    signal.raise_signal(signal.SIGTERM)


@contextlib.contextmanager
def delay_stop() -> Iterator[Callable[[], bool]]:
    """Delays the end by a signal until the block ends; a second Ctrl-C doesn't wait.

    Yields:
      A function that returns whether a stop was requested. The caller then saves its
      state and raises `Stopped`.
    """

    def request(number: int, frame: Any) -> None:
        global _received
        _received = number
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    previous_handlers = {number: signal.signal(number, request) for number in _SIGNALS}
    try:
        yield lambda: _received is not None
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
    if _received is not None:
        signal.raise_signal(_received)


def end() -> None:
    """Ends the process by the signal that requested the stop, as a shell expects it.

    A normal exit would wait for threads that compile, which can't be interrupted.
    """
    number = _received or signal.SIGTERM  # JAX takes the SIGTERM of several processes
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)

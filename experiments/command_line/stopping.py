"""Graceful stops by SIGTERM and Ctrl-C, without loss of progress.

Python runs signal handlers in the main thread between bytecode instructions, and so not
while that thread compiles or waits for a device. A separate thread therefore reads the
signals' numbers from a socket that the interpreter writes to.

SIGHUP, as from a closed ssh session, counts as SIGTERM. Under `nohup` it stays ignored.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_HANGUP: signal.Signals | None = getattr(signal, 'SIGHUP', None)  # not on Windows
_GRACE = 1.0  # seconds allowed for printing the last line

# Python closes sockets without a reference, and no signal would arrive.
_sockets: tuple[socket.socket, socket.socket] | None = None
_received: int | None = None  # the signal that requested a stop
_someone_asks = False
_line: Callable[[], str | None] = str


class Stopped(Exception):
    """The end of training by a stop request; says where its state is saved.

    The process should end soon, by `end`.
    """


def watch() -> None:
    """Makes SIGTERM and Ctrl-C end the process, or request a stop (`delay_stop`)."""
    global _sockets
    if _sockets is not None:
        return
    _sockets = socket.socketpair()
    receiver, sender = _sockets
    sender.setblocking(False)
    signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    for number in _watched():
        # Python writes only signals that have a handler to the socket.
        signal.signal(number, lambda number, frame: None)
    terminals = [number for number in (1, 2) if os.isatty(number)]
    listening = threading.Thread(target=_hear, args=[receiver, terminals], daemon=True)
    listening.start()
    if hasattr(os, 'register_at_fork'):  # not on Windows, which has no fork
        os.register_at_fork(after_in_child=_unwatch)


def is_watching() -> bool:
    """Returns whether `watch` handles Ctrl-C, so it raises no KeyboardInterrupt."""
    return _sockets is not None


def set_exit_message(line: Callable[[], str | None]) -> None:
    """Sets the last action and line of a process that a signal ends.

    `line` is called in another thread while the main thread continues. Without a text,
    prints `stopped` on stderr.
    """
    global _line
    _line = line


@contextlib.contextmanager
def delay_stop() -> Iterator[Callable[[], bool]]:
    """Delays the end by a signal until the block ends; a second Ctrl-C doesn't wait.

    Yields:
      A function that returns whether a stop was requested. The caller then saves its
      state and raises `Stopped`.
    """
    global _someone_asks
    _someone_asks = True
    try:
        yield lambda: _received is not None
    finally:
        # After a stop request, the process is about to end.
        _someone_asks = _received is not None
    if _received is not None:
        end()


@contextlib.contextmanager
def allow_stop() -> Iterator[None]:
    """Lets a signal end the process within `delay_stop`, while all is saved."""
    global _someone_asks
    before = _someone_asks
    _someone_asks = False
    if _received is not None:
        end()
    try:
        yield
    finally:
        _someone_asks = before


def end(line: Callable[[], str] | None = None) -> NoReturn:
    """Prints the last line, and ends the process with the signal's status.

    A normal exit would wait for threads that compile, which can't be interrupted.
    `line` replaces the function given to `set_exit_message`.
    """
    status = 128 + (_received or signal.SIGTERM)
    # The main thread may hold the lock of a stream that has no reader.
    in_time = threading.Timer(_GRACE, os._exit, [status])
    in_time.daemon = True
    in_time.start()
    try:
        text = (line or _line)()
        print(text or 'stopped', file=sys.stdout if text else sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _watched() -> list[signal.Signals]:
    if _HANGUP is None or signal.getsignal(_HANGUP) == signal.SIG_IGN:
        return [*_SIGNALS]
    return [*_SIGNALS, _HANGUP]


def _hear(receiver: socket.socket, terminals: Sequence[int]) -> None:
    global _received
    while True:
        number = receiver.recv(1)[0]
        if number == _HANGUP:
            # Printing to a closed terminal would fail before the state is saved.
            for terminal in terminals:
                os.dup2(os.open(os.devnull, os.O_WRONLY), terminal)
            # After a SIGTERM, JAX asks all of several processes to stop.
            os.kill(os.getpid(), signal.SIGTERM)
        if number not in _SIGNALS:
            continue
        is_second = _received is not None
        if not is_second:
            _received = number
        if not _someone_asks:
            end()
        if is_second and number == signal.SIGINT:
            os._exit(128 + number)


def _unwatch() -> None:
    """Restores the defaults in a forked process, which shares the socket."""
    signal.set_wakeup_fd(-1)
    for number in _watched():
        signal.signal(number, signal.SIG_DFL)

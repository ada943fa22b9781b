"""Stopping: SIGTERM and Ctrl-C end a command soon, and a run loses nothing by it.

Python runs signal handlers in the main thread, between two of its instructions: none
runs while that thread compiles or waits for a device. So a thread of its own hears of
signals, by a socket to which the interpreter writes the number of each. As a rule it
ends the process, as a kill would. Only where steps of training are not saved yet
(`asked`) it leaves that to whoever asks.

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
_GRACE = 1.0  # seconds in which the last line is printed

# Without a reference to both ends, Python closes them and nothing is heard.
_sockets: tuple[socket.socket, socket.socket] | None = None
_received: int | None = None  # the signal that asked for a stop
_someone_asks = False
_line: Callable[[], str | None] = str


class Stopped(Exception):
    """Training was asked to stop. The message says that its state is saved, and where.

    The process is to end soon, by `end`.
    """


def watch() -> None:
    """From now on SIGTERM and Ctrl-C end the process, or ask for a stop (`asked`)."""
    global _sockets
    if _sockets is not None:
        return
    _sockets = socket.socketpair()
    receiver, sender = _sockets
    sender.setblocking(False)
    signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    for number in _watched():
        # Python tells the socket only of signals that have a handler.
        signal.signal(number, lambda number, frame: None)
    terminals = [number for number in (1, 2) if os.isatty(number)]
    listening = threading.Thread(target=_hear, args=[receiver, terminals], daemon=True)
    listening.start()
    if hasattr(os, 'register_at_fork'):  # not on Windows, which has no fork
        os.register_at_fork(after_in_child=_unwatch)


def is_watching() -> bool:
    """Returns whether `watch` handles Ctrl-C, so it raises no KeyboardInterrupt."""
    return _sockets is not None


def at_end(line: Callable[[], str | None]) -> None:
    """What is done and printed last where a signal ends the process.

    Args:
      line: is called in another thread, while the main thread does what it did. Where
        it gives no text, and by default, `stopped` is printed on stderr: standard
        output may be a command's result.
    """
    global _line
    _line = line


@contextlib.contextmanager
def asked() -> Iterator[Callable[[], bool]]:
    """Within it a signal does not end the process; a second Ctrl-C does.

    Yields a function that tells whether a stop was asked for. Whoever calls it saves
    what is there, and raises `Stopped`.
    """
    global _someone_asks
    _someone_asks = True
    try:
        yield lambda: _received is not None
    finally:
        # Once a stop was asked for, the process is about to end by itself.
        _someone_asks = _received is not None
    if _received is not None:
        end()


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Within a block of `asked`: while all is saved, a signal ends the process."""
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

    An orderly exit would wait for threads that compile, which nothing can end.

    Args:
      line: in place of that of `at_end`.
    """
    status = 128 + (_received or signal.SIGTERM)
    # The main thread may have locked a stream on which nobody reads.
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
    """Returns the signals to watch: SIGHUP is among them unless it is ignored."""
    if _HANGUP is None or signal.getsignal(_HANGUP) == signal.SIG_IGN:
        return [*_SIGNALS]
    return [*_SIGNALS, _HANGUP]


def _hear(receiver: socket.socket, terminals: Sequence[int]) -> None:
    global _received
    while True:
        number = receiver.recv(1)[0]
        if number == _HANGUP:
            # Printing on a terminal that is gone would fail before the state is saved.
            for terminal in terminals:
                os.dup2(os.open(os.devnull, os.O_WRONLY), terminal)
            # Of several processes JAX asks all to stop after a SIGTERM.
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
    """A forked process shares the socket: its signals are not to end this one."""
    signal.set_wakeup_fd(-1)
    for number in _watched():
        signal.signal(number, signal.SIG_DFL)

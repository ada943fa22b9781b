"""Connections by which processes hear at once that one of them has died.

The first process has one with each other. The system closes those of a process that has
ended, however it ended and whatever it was busy with. jax hears of a death later, or
aborts the others where the first one dies.

Where no connection can be made, or a whole host dies, nothing is heard here.
"""

import contextlib
import secrets
import socket
import threading
import time
from collections.abc import Callable

from experiments.runtime.processes import group

_CONNECT_SECONDS = 10
_POLL = 0.05  # seconds
_LENGTH = 64  # bytes of what is sent, at most
_TOLD = b'told'

# Is called with the number of a process that has ended; None for one that was told of.
Died = Callable[[int | None], None]

_connections: list[socket.socket] = []  # of the first process


def start(host: str, died: Died) -> None:
    """Connects the processes; all call it.

    Args:
      host: where the first one is.
      died: is called in a thread: in the first process for each other, and in the
        others for the first.
    """
    server = socket.create_server(('', 0)) if group.is_first() else None

    def address() -> tuple[int, str]:
        assert server is not None
        # By the second part nobody else is taken for one of them.
        return server.getsockname()[1], secrets.token_hex(8)

    port, token = group.from_first('lifelines', address)
    if server is None:
        _in_thread(_hear_first, (host, port), token, died)
    else:
        _in_thread(_accept, server, token, died)


def tell() -> None:
    """Tells the others, in the first process, that what happened has been told."""
    for connection in list(_connections):
        with contextlib.suppress(OSError):
            connection.sendall(_TOLD)


def wait_for_ends(seconds: float) -> None:
    """Returns in the first process when the others have ended, or after some time."""
    until = time.monotonic() + seconds
    while _connections and time.monotonic() < until:
        time.sleep(_POLL)


def _hear_first(address: tuple[str, int], token: str, died: Died) -> None:
    try:
        connection = socket.create_connection(address, _CONNECT_SECONDS)
        connection.settimeout(None)
        connection.sendall(f'{token} {group.index()}'.encode())
    except OSError:
        return
    died(None if _received(connection) == _TOLD else 0)


def _accept(server: socket.socket, token: str, died: Died) -> None:
    while True:
        connection, _ = server.accept()
        _in_thread(_hear, connection, token, died)


def _hear(connection: socket.socket, token: str, died: Died) -> None:
    sent, _, index = _received(connection).decode('ascii', 'replace').partition(' ')
    if sent == token:
        _connections.append(connection)
        _received(connection)
        _connections.remove(connection)
        died(int(index))


def _in_thread(function: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=function, args=arguments, daemon=True).start()


def _received(connection: socket.socket) -> bytes:
    """What the other end sends; nothing once that is closed."""
    try:
        return connection.recv(_LENGTH)
    except OSError:
        return b''

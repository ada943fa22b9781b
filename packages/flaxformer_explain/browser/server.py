"""The server of the page, for browsers of this machine.

Other pages in the same browser can send requests to it. A request must therefore name
this machine as its host (against DNS rebinding), come from the page itself, and be
JSON, which forms can't send.
"""

import contextlib
import json
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.errors import UserError, line
from flaxformer_explain.browser import page

if TYPE_CHECKING:
    from flaxformer_explain.explainer import Explainer

ADDRESS = '127.0.0.1'
BEAMS = (1, 2, 4, 8)  # the page's choices
MOST_CHARACTERS = 400  # per sentence
MOST_BYTES = 20_000  # per question
MOST_QUESTIONS = 20  # per second
MOST_SECONDS = 10  # to receive a request
_MAX_DIGITS = 9  # digits of a Content-Length
_DISCONNECTED = (ConnectionError, TimeoutError)
_JSON = 'application/json'
_KINDS = [int, str, int, dict, str, int]
_FORM_ERROR = (
    'invalid request. Send JSON such as {"run": 0, "text": "…", "beams": 4, "edits": '
    '{}, "other": "", "rank": 0}, where beams is one of '
    f'{", ".join(map(str, BEAMS))}.'
)
_HEADERS = {
    # Blocks external content, and other pages that embed this one.
    'Content-Security-Policy': (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    'X-Content-Type-Options': 'nosniff',
    'Cache-Control': 'no-store',
}


class Question(NamedTuple):
    """A run, and the arguments of `Explainer.explain`."""

    run: int
    text: str
    beams: int
    edits: dict
    other: str
    rank: int


class RejectedRequest(Exception):
    """A rejected request: the HTTP status and the reason."""


class Server(ThreadingHTTPServer):
    """A server that listens on this machine only.

    Args:
      port: 0 chooses a free one.
    """

    daemon_threads = True

    def __init__(self, port: int):
        try:
            super().__init__((ADDRESS, port), _Handler)
        except (OSError, OverflowError) as error:
            raise UserError(
                f'--port={port}: not available ({error}). Pass another, or 0 for any '
                'free port.'
            ) from None
        self.hosts = [f'{name}:{self.server_port}' for name in (ADDRESS, 'localhost')]
        self.page = b''
        self._times: deque[float] = deque([0.0] * MOST_QUESTIONS, MOST_QUESTIONS)
        self._answer_lock = threading.Lock()

    def serve(self, runs: 'Sequence[Explainer]', example: str = '') -> None:
        """Answers questions about runs until the process ends, first the example."""
        self._runs = runs
        self.page = page.html(runs, example[:MOST_CHARACTERS], beams=BEAMS).encode()
        self.serve_forever()

    def answer(self, request: bytes) -> dict[str, Any]:
        """Returns the answer to a question in JSON, or raises Refused."""
        question = _read_question(request, len(self._runs))
        if time.monotonic() - self._times[0] < 1:
            raise RejectedRequest(
                429, f'more than {MOST_QUESTIONS} requests per second. Wait a moment.'
            )
        self._times.append(time.monotonic())
        run = self._runs[question.run]
        strategy = run.strategy(question.beams)
        with self._answer_lock:
            return run.explain(
                question.text, strategy, question.edits, question.other, question.rank
            )

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), _DISCONNECTED):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """One request. It closes its connection, so that no rest is read as another."""

    server: Server
    timeout = MOST_SECONDS
    server_version = 'flaxformer_lite'
    sys_version = ''

    def handle(self) -> None:
        # The socket's timeout is per read: a client that sends a byte now and then
        # would never reach it.
        timer = threading.Timer(MOST_SECONDS, self._end_request)
        timer.daemon = True
        timer.start()
        try:
            super().handle()
        finally:
            timer.cancel()

    def _end_request(self) -> None:
        with contextlib.suppress(OSError):  # the connection has ended
            self.connection.shutdown(socket.SHUT_RD)

    def do_GET(self) -> None:
        self._respond(self._page)

    def do_POST(self) -> None:
        self._respond(self._answer)

    def _page(self) -> bytes:
        self._check_sender('/')
        return self.server.page

    def _answer(self) -> bytes:
        length = self.headers.get('Content-Length', '')
        # Python refuses to parse a number with thousands of digits.
        size = int(length[:_MAX_DIGITS]) if length.isdecimal() else 0
        # Read before any check: a client that is still writing would miss the answer.
        request = self.rfile.read(size) if size <= 10 * MOST_BYTES else b''
        self._check_sender('/translate')
        if self.headers.get_content_type() != _JSON:
            raise RejectedRequest(415, f'invalid content type. Send {_JSON}.')
        if size > MOST_BYTES:
            raise RejectedRequest(
                413, f'the request has more than {MOST_BYTES:,} bytes. Shorten it.'
            )
        return json.dumps(self.server.answer(request)).encode()

    def _check_sender(self, path: str) -> None:
        own = self.server.hosts
        hosts = self.headers.get_all('Host', [])
        if len(hosts) != 1 or hosts[0] not in own:
            raise RejectedRequest(403, f'invalid host. Use {own[0]}.')
        origin = self.headers.get('Origin')
        if origin not in (None, f'http://{hosts[0]}'):
            raise RejectedRequest(403, 'requests from other origins are not allowed')
        if self.path != path:
            raise RejectedRequest(404, f'{self.path[:100]!r} not found')

    def _respond(self, make: Callable[[], bytes]) -> None:
        try:
            content = make()
        except RejectedRequest as rejection:
            status, message = rejection.args
            self.send_error(status, message)
        except UserError as error:
            self.send_error(400, line(error))
        except _DISCONNECTED:
            raise
        except Exception:
            traceback.print_exc()
            self.send_error(
                500, 'internal error. The terminal of the server shows the traceback.'
            )
        else:
            self._send(200, content)

    def send_error(
        self, code: int, message: str | None = None, explain: str | None = None
    ) -> None:
        error = message or self.responses[code][0]
        self._send(code, json.dumps({'error': error}).encode())

    def _send(self, status: int, content: bytes) -> None:
        is_page = content is self.server.page
        self.send_response(status)
        self.send_header('Content-Type', 'text/html' if is_page else _JSON)
        self.send_header('Content-Length', str(len(content)))
        for header in _HEADERS.items():
            self.send_header(*header)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: the terminal is for errors."""


def _read_question(request: bytes, runs: int) -> Question:
    try:
        question = Question(**json.loads(request))
        has_valid_types = [type(value) for value in question] == _KINDS
    except (ValueError, TypeError, RecursionError):
        raise RejectedRequest(400, _FORM_ERROR) from None
    if not has_valid_types or question.beams not in BEAMS:
        raise RejectedRequest(400, _FORM_ERROR)
    if question.run not in range(runs):
        raise RejectedRequest(400, f'run must be from 0 to {runs - 1}.')
    longest = max(len(question.text), len(question.other))
    if longest > MOST_CHARACTERS:
        raise RejectedRequest(
            400,
            f'the sentence has {longest} characters. Shorten it to {MOST_CHARACTERS}.',
        )
    return question

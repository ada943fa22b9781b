"""Tests of the demo's server: the requests that it accepts, and its answers."""

import contextlib
import html
import http.client
import json
import re
import socket
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from experiments.errors import UserError
from flaxformer_explain.browser import page, server
from flaxformer_explain.browser.server import Server

HOSTILE = '</script><b>x</b>'
QUESTION = {
    'run': 0,
    'text': 'a b',
    'beams': 4,
    'edits': {'x': '0.5'},
    'other': 'c',
    'rank': 1,
}


def stub_explainer(explain=lambda *arguments: {'arguments': arguments}) -> Any:
    return SimpleNamespace(
        run=SimpleNamespace(path=f'runs/{HOSTILE}'),
        switches=[],
        strategy=lambda beams: f'beams={beams}',
        explain=explain,
    )


@contextlib.contextmanager
def serving(explainer):
    with Server(0) as running:
        threading.Thread(target=running.serve, args=[[explainer]], daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture(scope='module')
def running():
    with serving(stub_explainer()) as demo:
        yield demo


def ask(running, body=QUESTION, method='POST', path='/translate', **headers):
    """Returns the status and the content of a response."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    connection = http.client.HTTPConnection(*running.server_address, timeout=20)
    headers = {'Content-Type': 'application/json', **headers}
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    assert response.getheader('X-Content-Type-Options') == 'nosniff'
    assert "frame-ancestors 'none'" in response.getheader('Content-Security-Policy')
    return response.status, json.loads(response.read())


def test_valid_requests_reach_the_explainer_unchanged(running):
    arguments = ['a b', 'beams=4', {'x': '0.5'}, 'c', 1]
    assert ask(running) == (200, {'arguments': arguments})
    host = running.hosts[1]
    assert ask(running, Host=host, Origin=f'http://{host}')[0] == 200
    assert running.server_address[0] == '127.0.0.1'


OTHER_SENDERS = [
    {'Host': 'evil.example'},
    {'Host': 'evil.example:{port}'},
    {'Host': '127.0.0.1'},
    {'Host': ''},
    {'Origin': 'http://evil.example'},
    {'Origin': 'http://127.0.0.1:1'},
    {'Origin': 'https://127.0.0.1:{port}'},
    {'Origin': 'null'},
]


@pytest.mark.parametrize('headers', OTHER_SENDERS, ids=str)
def test_other_hosts_and_origins_are_forbidden(running, headers):
    headers = {k: x.format(port=running.server_port) for k, x in headers.items()}
    for method, path in ('GET', '/'), ('POST', '/translate'):
        status, content = ask(running, method=method, path=path, **headers)
        assert (status, list(content)) == (403, ['error'])


LONG = 'x' * (server.MOST_CHARACTERS + 1)


@pytest.mark.parametrize(
    ('body', 'headers', 'status'),
    [
        (QUESTION, {'Content-Type': 'text/plain'}, 415),
        (b'{', {}, 400),
        (b'\xff', {}, 400),
        (b'[' * 10_000, {}, 400),
        ([], {}, 400),
        ({'text': 'a'}, {}, 400),
        (QUESTION | {'more': 1}, {}, 400),
        (QUESTION | {'text': 5}, {}, 400),
        (QUESTION | {'edits': ['x']}, {}, 400),
        (QUESTION | {'run': True}, {}, 400),
        (QUESTION | {'beams': 3}, {}, 400),
        (QUESTION | {'run': 1}, {}, 400),
        (QUESTION | {'run': -1}, {}, 400),
        (QUESTION | {'text': LONG}, {}, 400),
        (QUESTION | {'other': LONG}, {}, 400),
        (b'x' * (server.MOST_BYTES + 1), {}, 413),
        (QUESTION, {'Content-Length': '9' * 5_000}, 413),
        (b'', {'Content-Length': '9' * 5_000, 'Host': 'x'}, 403),
        (b'', {'Content-Length': '-5'}, 400),
    ],
)
def test_invalid_bodies_are_rejected(running, body, headers, status):
    rejection, content = ask(running, body, **headers)
    assert (rejection, list(content)) == (status, ['error'])


def test_other_paths_and_methods_are_rejected(running):
    for method, path, status in (
        ('GET', '/../x', 404),
        ('POST', '/', 404),
        ('PUT', '/', 501),
        ('OPTIONS', '/', 501),
    ):
        assert ask(running, method=method, path=path)[0] == status


def test_request_rate_is_limited(running, monkeypatch):
    now = time.monotonic() + 10
    monkeypatch.setattr(server.time, 'monotonic', lambda: now)
    for _ in range(server.MOST_QUESTIONS):
        assert ask(running)[0] == 200
    assert ask(running)[0] == 429
    now += 1.1
    assert ask(running)[0] == 200


def test_user_errors_are_sent_and_internal_errors_only_printed(capfd):
    def explain(text, *_):
        raise UserError('the sentence is blank') if text == 'a b' else KeyError(text)

    with serving(stub_explainer(explain)) as running:
        assert ask(running) == (400, {'error': 'the sentence is blank'})
        status, content = ask(running, QUESTION | {'text': 'secret'})
    assert status == 500 and 'secret' not in content['error']
    assert 'KeyError' in capfd.readouterr().err


def test_closed_connections_print_no_error(capfd):
    is_closed, is_answered = threading.Event(), threading.Event()

    def explain(*_):
        is_closed.wait(20)
        is_answered.set()
        return 'x' * 10_000_000  # exceeds the buffers of a connection

    with serving(stub_explainer(explain)) as running:
        body = json.dumps(QUESTION).encode()
        connection = http.client.HTTPConnection(*running.server_address, timeout=20)
        headers = {'Content-Type': 'application/json'}
        connection.request('POST', '/translate', body, headers)
        connection.close()
        is_closed.set()
        assert is_answered.wait(20)
        assert ask(running, b'{')[0] == 400
    assert capfd.readouterr().err == ''


def test_slow_requests_time_out(monkeypatch):
    monkeypatch.setattr(server, 'MOST_SECONDS', 0.5)
    with (
        serving(stub_explainer()) as running,
        socket.create_connection(running.server_address) as client,
    ):
        client.settimeout(0.1)
        headers = f'Host: {running.hosts[0]}\r\nContent-Length: 20000\r\n'
        headers += 'Content-Type: application/json\r\n\r\n'
        client.sendall(f'POST /translate HTTP/1.1\r\n{headers}'.encode())
        response = b''
        while not response:
            client.sendall(b'x')
            with contextlib.suppress(TimeoutError):
                response = client.recv(100)
    assert b' 400 ' in response


def test_unavailable_ports_are_rejected(running):
    for port in running.server_port, 99_999:
        with pytest.raises(UserError, match=f'--port={port}'):
            Server(port)


def test_page_is_one_file_without_external_requests():
    text = page.html([stub_explainer()], f'"{HOSTILE}', beams=[1])
    assert HOSTILE not in text
    (example,) = re.findall(r'<input type="text" id="text" value="(.*?)"', text)
    assert html.unescape(example) == f'"{HOSTILE}'
    urls = r'(src|href)="(?!data:)|@import|url\(|https?://(?!www.w3)'
    assert not re.search(urls, text)
    (data,) = re.findall(r'id="data">(.*?)</script>', text)
    assert json.loads(data)['runs'] == [{'name': f'runs/{HOSTILE}', 'switches': []}]

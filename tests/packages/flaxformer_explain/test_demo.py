"""Tests of the demo."""

import contextlib
import html
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import small_runs
from test_explainer import explainer_of

from experiments import storage, translate
from experiments.errors import UserError
from flaxformer_explain import page as page_command
from flaxformer_explain.browser import page, server
from flaxformer_explain.browser.server import Server
from flaxformer_explain.explainer import Explainer

CHROMIUM = Path('/usr/bin/chromium')
HOSTILE = '</script><b>x</b>'
QUESTION = {
    'run': 0,
    'text': 'a b',
    'beams': 4,
    'edits': {'x': '0.5'},
    'other': 'c',
    'rank': 1,
}
JSON = {'Content-Type': 'application/json'}


def explainer(explain=lambda *question: {'asked': question}) -> Any:
    run = SimpleNamespace(path=f'runs/{HOSTILE}')
    return SimpleNamespace(
        run=run, switches=[], strategy=lambda beams: f'beams={beams}', explain=explain
    )


@contextlib.contextmanager
def serving(run):
    with Server(0) as started:
        threading.Thread(target=started.serve, args=[[run]], daemon=True).start()
        yield started
        started.shutdown()


@pytest.fixture(scope='module')
def running():
    with serving(explainer()) as started:
        yield started


def ask(running, body=QUESTION, method='POST', path='/translate', **headers):
    """Returns the status and the answer to a request."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    connection = http.client.HTTPConnection(*running.server_address, timeout=20)
    sent = JSON | {name.replace('_', '-'): x for name, x in headers.items()}
    connection.request(method, path, body, sent)
    response = connection.getresponse()
    assert response.getheader('X-Content-Type-Options') == 'nosniff'
    assert "frame-ancestors 'none'" in response.getheader('Content-Security-Policy')
    return response.status, json.loads(response.read())


def test_requests_reach_the_explainer_unchanged(running):
    asked = ['a b', 'beams=4', {'x': '0.5'}, 'c', 1]
    assert ask(running) == (200, {'asked': asked})
    origin = f'http://{running.hosts[1]}'
    assert ask(running, Host=running.hosts[1], Origin=origin)[0] == 200


def test_it_listens_on_this_machine_alone(running):
    assert running.server_address[0] == '127.0.0.1'


@pytest.mark.parametrize('method', ['GET', 'POST'])
@pytest.mark.parametrize(
    'headers',
    [
        {'Host': 'evil.example'},
        {'Host': 'evil.example:{port}'},
        {'Host': '127.0.0.1'},
        {'Host': ''},
        {'Origin': 'http://evil.example'},
        {'Origin': 'http://127.0.0.1:1'},
        {'Origin': 'https://127.0.0.1:{port}'},
        {'Origin': 'null'},
    ],
    ids=str,
)
def test_requests_of_other_hosts_and_origins_are_refused(running, method, headers):
    port = running.server_port
    headers = {name: x.format(port=port) for name, x in headers.items()}
    path = '/' if method == 'GET' else '/translate'
    status, answer = ask(running, method=method, path=path, **headers)
    assert status == 403
    assert re.search('invalid host. Use 127|other origins are not', answer['error'])


@pytest.mark.parametrize(
    ('body', 'headers', 'status', 'message'),
    [
        (QUESTION, {'Content_Type': 'text/plain'}, 415, 'application/json'),
        (b'{', {}, 400, 'JSON'),
        (b'\xff', {}, 400, 'JSON'),
        (b'[' * 10_000, {}, 400, 'JSON'),
        ([], {}, 400, 'JSON'),
        ({'text': 'a'}, {}, 400, 'JSON'),
        (QUESTION | {'more': 1}, {}, 400, 'JSON'),
        (QUESTION | {'text': 5}, {}, 400, 'JSON'),
        (QUESTION | {'edits': ['x']}, {}, 400, 'JSON'),
        (QUESTION | {'run': True}, {}, 400, 'JSON'),
        (QUESTION | {'beams': 3}, {}, 400, 'beams'),
        (QUESTION | {'run': 1}, {}, 400, 'run'),
        (QUESTION | {'run': -1}, {}, 400, 'run'),
        (QUESTION | {'text': 'x' * 401}, {}, 400, '401'),
        (QUESTION | {'other': 'x' * 401}, {}, 400, '401'),
        (b'x' * (server.MOST_BYTES + 1), {}, 413, '20,000'),
        (QUESTION, {'Content_Length': '9' * 5_000}, 413, '20,000'),
        (b'', {'Content_Length': '9' * 5_000, 'Host': 'x'}, 403, 'host'),
        (b'', {'Content_Length': '-5'}, 400, 'JSON'),
    ],
)
def test_invalid_requests_are_refused(running, body, headers, status, message):
    found, answer = ask(running, body, **headers)
    assert (found, list(answer)) == (status, ['error'])
    assert message in answer['error']


@pytest.mark.parametrize(
    ('method', 'path', 'status'),
    [
        ('GET', '/../x', 404),
        ('POST', '/', 404),
        ('PUT', '/', 501),
        ('OPTIONS', '/', 501),
    ],
)
def test_other_paths_and_methods_are_refused(running, method, path, status):
    found, answer = ask(running, method=method, path=path)
    assert found == status and answer['error']


def test_too_many_questions_are_refused(running, monkeypatch):
    now = time.monotonic() + 10
    monkeypatch.setattr(server.time, 'monotonic', lambda: now)
    for _ in range(server.MOST_QUESTIONS):
        assert ask(running)[0] == 200
    status, answer = ask(running)
    assert status == 429
    assert '20 requests' in answer['error']
    now += 1.1
    assert ask(running)[0] == 200


def test_user_errors_are_shown_and_internal_errors_are_hidden(capfd):
    def wrong(text, *_):
        raise UserError('the sentence is blank') if text == 'a b' else KeyError(text)

    with serving(explainer(wrong)) as started:
        assert ask(started) == (400, {'error': 'the sentence is blank'})
        status, answer = ask(started, QUESTION | {'text': 'secret'})
    assert status == 500 and 'internal error' in answer['error']
    assert 'KeyError' in capfd.readouterr().err


def test_closed_connections_print_no_error(capfd):
    left = threading.Event()
    answered = threading.Event()

    def slow(*_):
        left.wait(20)
        answered.set()
        return 'x' * 10_000_000  # more than the buffers of a connection hold

    with serving(explainer(slow)) as started:
        body = json.dumps(QUESTION).encode()
        connection = http.client.HTTPConnection(*started.server_address, timeout=20)
        connection.request('POST', '/translate', body, JSON)
        connection.close()
        left.set()
        assert answered.wait(20)
        assert ask(started, b'{')[0] == 400
    assert capfd.readouterr().err == ''


@pytest.mark.parametrize(
    ('start', 'answer'),
    [
        (b'POST /translate HTTP/1.1\r\nX: ', b' 403 '),
        (
            b'POST /translate HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json'
            b'\r\nContent-Length: 20000\r\n\r\n',
            b' 400 ',
        ),
    ],
    ids=['headers', 'body'],
)
def test_slow_requests_time_out(start, answer, monkeypatch):
    monkeypatch.setattr(server, 'MOST_SECONDS', 1)
    with serving(explainer()) as started:
        with socket.create_connection(started.server_address) as client:
            client.settimeout(0.2)
            client.sendall(start.replace(b'%s', started.hosts[0].encode()))
            found = b''
            for _ in range(100):
                with contextlib.suppress(TimeoutError):
                    found = client.recv(100)
                    break
                client.sendall(b'x')
    assert answer in found


def test_unavailable_ports_are_refused(running):
    with pytest.raises(UserError, match=f'--port={running.server_port}'):
        Server(running.server_port)
    with pytest.raises(UserError, match='--port=99999'):
        Server(99_999)


def test_the_page_begins_with_an_example():
    text = page.html([explainer()], f'"{HOSTILE}', beams=[1])
    (value,) = re.findall(r'<input type="text" id="text" value="(.*?)"', text)
    assert html.unescape(value) == f'"{HOSTILE}' and HOSTILE not in text


def test_the_example_is_the_first_source_that_was_scored(tmp_path):
    run: Any = SimpleNamespace(run=SimpleNamespace(path=tmp_path))
    assert Explainer.example(run) == ''
    storage.write(tmp_path / 'translations' / 'val.source.txt', 'My dog.\nA cat.\n')
    assert Explainer.example(run) == 'My dog.'


def test_page_is_one_file_without_external_requests():
    text = page.html([explainer()], beams=[1])
    assert HOSTILE not in text
    assert not re.search(
        r'(src|href)="(?!data:)|@import|url\(|https?://(?!www.w3)', text
    )
    (data,) = re.findall(r'id="data">(.*?)</script>', text)
    assert json.loads(data)['runs'] == [{'name': f'runs/{HOSTILE}', 'switches': []}]


@pytest.fixture(scope='module')
def trained(tmp_path_factory, cache):
    text = small_runs.write_text(tmp_path_factory.mktemp('text'), val=4)
    fields = small_runs.FIELDS | {'data': small_runs.source(text), 'train.steps': 4}
    fields |= {'evaluation.decode': 'beam(beams=2)', 'evaluation.sets': 'val'}
    path = tmp_path_factory.mktemp('runs') / 'run'
    small_runs.train(path, *small_runs.flags(fields, model__num_layers=2))
    return path


@pytest.fixture(scope='module')
def address(trained):
    command = [sys.executable, '-m', 'flaxformer_explain.demo', '--port=0']
    command += [f'--workdir={trained}'] * 2
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            line = process.stdout.readline()
            assert re.fullmatch(
                r'http://127\.0\.0\.1:\d+/ \(press Ctrl-C to stop\)\n', line
            ), process.stderr.read()
            yield line.split()[0]
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(30) == -signal.SIGINT
        assert process.stderr.read() == ''


def lines_to_page(trained, out, lines, monkeypatch, *flags):
    source = out.with_name('in.txt')
    source.write_text(lines, encoding='utf-8')
    with source.open() as stdin, monkeypatch.context() as patch:
        patch.setattr(sys, 'stdin', stdin)
        argv = ['page', f'--workdir={trained}', f'--out={out}', *flags]
        patch.setattr(sys, 'argv', argv)
        page_command.main()
    (data,) = re.findall(r'id="data">(.*?)</script>', out.read_text('utf-8'))
    return json.loads(data)


@pytest.mark.slow
@pytest.mark.usefixtures('cache')
def test_the_page_of_a_text_has_the_translations_that_translate_prints(
    trained, tmp_path, monkeypatch, capsys
):
    blank = '\n' * 20
    lines = f'{blank}My dog sleeps.\n\n{"a cat " * 60}\nMy cat.\n'
    data = lines_to_page(trained, tmp_path / 'x.html', lines, monkeypatch)
    assert "skipped 'a cat a cat" in capsys.readouterr().err
    with (tmp_path / 'in.txt').open() as stdin, monkeypatch.context() as patch:
        patch.setattr(sys, 'stdin', stdin)
        patch.setattr(sys, 'argv', ['translate', f'--workdir={trained}'])
        translate.main()
    *_, first, _, _, last = capsys.readouterr().out.splitlines()
    assert [x['text'] for x in data['answers']] == ['My dog sleeps.', 'My cat.']
    assert [x['texts'][0] for x in data['answers']] == [first, last]
    link = tmp_path / 'link.html'
    link.symlink_to('target.html')
    lines_to_page(trained, link, 'a\n', monkeypatch)
    assert link.is_symlink() and (tmp_path / 'target.html').is_file()
    with pytest.raises(UserError, match='--decode=sample draws samples'):
        lines_to_page(trained, tmp_path / 'y.html', 'a', monkeypatch, '--decode=sample')


@pytest.mark.slow
def test_the_command_answers_as_translate_does(address, trained, monkeypatch):
    def answer(**changes):
        body = json.dumps(QUESTION | {'edits': {}, 'rank': 0} | changes).encode()
        request = urllib.request.Request(f'{address}translate', body, JSON)
        with urllib.request.urlopen(request, timeout=100) as response:
            return json.load(response)

    whole = answer()
    switches = json.loads(
        re.findall(
            r'id="data">(.*?)</script>',
            urllib.request.urlopen(address, timeout=100).read().decode(),
        )[0]
    )['runs'][1]['switches']
    assert answer(run=1) == whole
    assert answer(edits={switches[0]: 0})['tree'] != whole['tree']


browser_test = pytest.mark.skipif(
    not CHROMIUM.exists(), reason='there is no Chromium here'
)


@pytest.fixture(scope='module')
def chromium():
    playwright = pytest.importorskip('playwright.sync_api')
    with playwright.sync_playwright() as started:
        flags = ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage']
        found = started.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield found
        found.close()


@pytest.fixture(params=[1280, 390])
def tab(chromium, request):
    """Returns an empty tab; later checks for console errors and foreign requests."""
    found = chromium.new_page(
        viewport={'width': request.param, 'height': 900}, reduced_motion='reduce'
    )
    found.set_default_timeout(60_000)  # milliseconds
    complaints, asked = [], []
    found.on('console', lambda message: complaints.append(message.text))
    found.on('pageerror', lambda error: complaints.append(str(error)))
    found.on('request', lambda sent: asked.append(sent.url))
    yield found
    # Chromium logs requests that the server refuses.
    assert [x for x in complaints if 'status of 400' not in x] == []
    here = 'http://127.0.0.1:', 'file:', 'data:'
    assert asked and all(url.startswith(here) for url in asked)
    found.close()


def check_width(tab):
    width = tab.evaluate('document.documentElement.scrollWidth')
    assert width <= tab.viewport_size['width']


@pytest.mark.slow
@browser_test
def test_page_translates_typed_sentences_and_switches_heads_off(tab, address):
    tab.goto(address)
    one, other = tab.locator('.run').all()
    one.locator('.tokens button').first.wait_for()
    other.locator('.tokens button').first.wait_for()
    examples = [run.locator('.translation').inner_text() for run in (one, other)]
    tab.locator('#text').fill('My dog sleeps.')
    tab.keyboard.press('Enter')
    for run, example in zip((one, other), examples, strict=True):
        run.locator('.translation').get_by_text(example, exact=True).wait_for(
            state='detached'
        )
    texts = [run.locator('.translation').inner_text() for run in (one, other)]
    assert texts[0] == texts[1]
    tokens = one.locator('.tokens button')
    assert one.locator('.clock').inner_text() == f'{tokens.count()} / {tokens.count()}'
    # Time goes back by a click and by a key.
    tokens.nth(1).click()
    assert one.locator('.which').inner_text() == 'Predicted distribution of token 2'
    one.get_by_label('Decoding step').press('ArrowLeft')
    assert one.locator('.which').inner_text() == 'Predicted distribution of token 1'
    # Another map, by the keyboard, which stays where it is.
    button = one.get_by_label('Show Cross-attention, layer 1, head 0')
    button.press('Enter')
    assert one.locator('.title').inner_text().endswith('layer 1, head 0')
    assert tab.evaluate('document.activeElement.ariaLabel') == button.get_attribute(
        'aria-label'
    )
    cells = one.locator('.map rect[data-query]')
    cells.first.hover()
    assert re.search(r'→ .*: [01]\.\d{3}', one.locator('.told').inner_text())
    # A head and a layer, in one run alone.
    before = other.inner_text()
    one.get_by_label('Cross-attention, layer 1, head 1: on').uncheck()
    one.get_by_label('Layer 0 of the decoder: on').uncheck()
    whole = one.locator('.whole')
    whole.wait_for()
    assert texts[0] == whole.inner_text().strip()
    assert other.inner_text() == before
    # A result of the search that is not the best one.
    results = one.locator('.results button')
    results.nth(1).click()
    one.locator('.results li:nth-child(2) [aria-pressed=true]').wait_for()
    assert one.locator('.tree .shown').count() > 1
    check_width(tab)


@pytest.mark.slow
@browser_test
@pytest.mark.parametrize('scheme', ['light', 'dark'])
def test_a_head_is_scaled_next_to_the_unchanged_translation(tab, address, scheme):
    tab.emulate_media(color_scheme=scheme)
    tab.goto(address)
    one, _ = tab.locator('.run').all()
    one.locator('.tokens button').first.wait_for()
    lens = one.locator('.lens')
    tokens = one.locator('.tokens b').all_inner_texts()
    assert lens.locator('thead th').all_inner_texts() == tokens
    layers = lens.locator('tbody th').all_inner_texts()
    assert layers == ['embedding', 'layer 0', 'layer 1']
    translation = one.locator('.translation').inner_text()
    cells = lens.inner_text()
    one.get_by_role('combobox', name='Layer').select_option('decoder layer 1')
    one.get_by_label('Component').select_option('feed-forward network')
    factor, apply = one.get_by_label('Factor'), one.get_by_role('button', name='Apply')
    for value in '1', '-40':
        factor.fill(value)
        factor.press('Enter')
        one.get_by_text(f'decoder layer 1, feed-forward network: × {value}').wait_for()
        assert one.locator('.whole').inner_text().strip() == translation
        assert (lens.inner_text() == cells) == (value == '1')
    factor.fill('much')
    apply.click()
    tab.locator('#status.wrong').wait_for()
    assert "factor: 'much'" in tab.locator('#status').inner_text()
    # The page keeps the last valid change.
    change = one.get_by_role('button', name='Remove decoder layer 1')
    assert '× -40' in change.inner_text()
    for control in one.locator('.controls :visible').all():
        box = control.bounding_box()
        assert box['x'] + box['width'] <= tab.viewport_size['width']
    check_width(tab)
    change.click()
    one.locator('.compare').wait_for(state='hidden')
    assert lens.inner_text() == cells


@pytest.mark.slow
@browser_test
def test_errors_are_shown_on_the_page(tab, address):
    tab.goto(address)
    tab.locator('#text').fill('a ' * 150)
    tab.keyboard.press('Enter')
    tab.locator('#status.wrong').wait_for()
    assert 'including the end token' in tab.locator('#status').inner_text()


@pytest.mark.slow
@browser_test
@pytest.mark.parametrize(
    ('config', 'said'),
    [
        (
            {'attention': 'blockwise', 'cross.attention': 'softmax'},
            'Encoder self-attention, Decoder self-attention: this implementation '
            'stores no weights to show. You can still switch off its heads.',
        ),
        (
            {'architecture': 'recurrent'},
            'This model has no attention heads to switch off.',
        ),
        ({'architecture': 'decoder_only'}, ''),
    ],
    ids=str,
)
def test_page_names_the_missing_parts_of_a_model(tab, tmp_path, config, said):
    found = explainer_of(**config)
    answer = {'text': 'ab', **found.explain('ab', found.strategy(1))}
    file = tmp_path / 'page.html'
    file.write_text(page.html([found], answers=[answer]), encoding='utf-8')
    tab.goto(file.as_uri())
    assert tab.locator('.notes').text_content() == said
    for kind in tab.locator('.kinds button').all():
        kind.click()
    assert tab.locator('.head').count()


@pytest.mark.slow
@browser_test
@pytest.mark.usefixtures('cache')
def test_a_page_that_is_a_file_needs_no_server(tab, trained, tmp_path, monkeypatch):
    lines_to_page(trained, tmp_path / 'x.html', f'{HOSTILE}\nMy cat.\n', monkeypatch)
    tab.goto((tmp_path / 'x.html').as_uri())
    tab.locator('.tokens button').first.wait_for()
    assert tab.locator('#sentences option').all_inner_texts() == [HOSTILE, 'My cat.']
    first = tab.locator('.tokens [aria-pressed=true]').inner_text()
    assert any(map(str.isalnum, first)) and '</s>' not in first
    pieces = tab.locator('.pieces').inner_text()
    tab.locator('#sentences').select_option('My cat.')
    assert tab.locator('.pieces').inner_text() != pieces
    assert tab.locator('.heads').inner_text() and not tab.locator('.switch').count()
    # Scrolling areas have keyboard focus, and tokens are named by their text.
    for scrolls in tab.locator('.scrolls').all():
        scrolls.focus()
        assert tab.evaluate('document.activeElement.ariaLabel')
    assert tab.locator('.tokens [aria-label]').count() == 0
    check_width(tab)

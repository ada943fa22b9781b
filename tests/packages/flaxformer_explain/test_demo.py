"""Tests of the demo and of the command `page`, in Chromium if it is installed."""

import json
import re
import signal
import subprocess
import sys
import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest
import small_runs

from docs import shots
from experiments import storage, translate
from experiments.errors import UserError
from flaxformer_explain import page
from flaxformer_explain.explainer import Explainer

HOSTILE = '</script><b>x</b>'
QUESTION = {'run': 0, 'text': 'a b', 'beams': 4, 'edits': {}, 'other': '', 'rank': 0}


def data_of(text):
    """Returns the JSON data of a page."""
    (data,) = re.findall(r'id="data">(.*?)</script>', text)
    return json.loads(data)


def test_example_is_the_first_scored_source(tmp_path):
    run: Any = SimpleNamespace(run=SimpleNamespace(path=tmp_path))
    assert Explainer.example(run) == ''
    storage.write(tmp_path / 'translations' / 'val.source.txt', 'My dog.\nA cat.\n')
    assert Explainer.example(run) == 'My dog.'


@pytest.fixture(scope='module')
def workdir(tmp_path_factory, cache):
    text = small_runs.write_text(tmp_path_factory.mktemp('text'), val=4)
    fields = small_runs.FIELDS | {'data': small_runs.source(text), 'train.steps': 4}
    fields |= {'evaluation.decode': 'beam(beams=2)', 'evaluation.sets': 'val'}
    path = tmp_path_factory.mktemp('runs') / 'run'
    small_runs.train(path, *small_runs.flags(fields, model__num_layers=2))
    return path


def write_page(workdir, out, lines, monkeypatch, *flags):
    """Runs the command on the lines, and returns the data of its page."""
    source = out.with_name('in.txt')
    source.write_text(lines, encoding='utf-8')
    with source.open() as stdin, monkeypatch.context() as patch:
        patch.setattr(sys, 'stdin', stdin)
        argv = ['page', f'--workdir={workdir}', f'--out={out}', *flags]
        patch.setattr(sys, 'argv', argv)
        page.main()
    return data_of(out.read_text('utf-8'))


@pytest.mark.slow
@pytest.mark.usefixtures('cache')
def test_page_shows_the_translations_of_translate(
    workdir, tmp_path, monkeypatch, capsys
):
    blank = '\n' * 20
    lines = f'{blank}My dog sleeps.\n\n{"a cat " * 60}\nMy cat.\n'
    data = write_page(workdir, tmp_path / 'x.html', lines, monkeypatch)
    assert "skipped 'a cat a cat" in capsys.readouterr().err
    with (tmp_path / 'in.txt').open() as stdin, monkeypatch.context() as patch:
        patch.setattr(sys, 'stdin', stdin)
        patch.setattr(sys, 'argv', ['translate', f'--workdir={workdir}'])
        translate.main()
    *_, first, _, _, last = capsys.readouterr().out.splitlines()
    assert [x['text'] for x in data['answers']] == ['My dog sleeps.', 'My cat.']
    assert [x['texts'][0] for x in data['answers']] == [first, last]
    with pytest.raises(UserError, match='--decode=sample draws samples'):
        write_page(workdir, tmp_path / 'y.html', 'a', monkeypatch, '--decode=sample')


@pytest.fixture(scope='module')
def address(workdir):
    """Starts the demo with two runs, and checks that Ctrl-C ends it silently."""
    argv = [sys.executable, '-m', 'flaxformer_explain.demo', '--port=0']
    argv += [f'--workdir={workdir}'] * 2
    pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE}
    with subprocess.Popen(argv, text=True, **pipes) as process:
        try:
            line = process.stdout.readline()
            url = re.match(r'http://127\.0\.0\.1:\d+/', line)
            assert url, process.stderr.read()
            yield url[0]
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(30) == -signal.SIGINT
        assert process.stderr.read() == ''


@pytest.mark.slow
def test_demo_answers_for_each_run(address):
    def answer(**changes):
        body = json.dumps(QUESTION | changes).encode()
        headers = {'Content-Type': 'application/json'}
        request = urllib.request.Request(f'{address}translate', body, headers)
        with urllib.request.urlopen(request, timeout=100) as response:
            return json.load(response)

    with urllib.request.urlopen(address, timeout=100) as response:
        switch, *_ = data_of(response.read().decode())['runs'][1]['switches']
    whole = answer()
    assert answer(run=1) == whole
    assert answer(edits={switch: 0})['tree'] != whole['tree']


@pytest.fixture(params=[1280, 390])
def tab(browser, request):
    """Returns an empty tab; later checks for console errors and foreign requests."""
    size = {'width': request.param, 'height': 900}
    opened = browser.new_page(viewport=size, reduced_motion='reduce')
    opened.set_default_timeout(60_000)  # milliseconds
    errors, urls = [], []
    opened.on('console', lambda message: errors.append(message.text))
    opened.on('pageerror', lambda error: errors.append(str(error)))
    opened.on('request', lambda sent: urls.append(sent.url))
    yield opened
    # Chromium logs requests that the server rejects.
    assert [x for x in errors if 'status of 400' not in x] == []
    local = 'http://127.0.0.1:', 'file:', 'data:'
    assert urls and all(url.startswith(local) for url in urls)
    width = opened.evaluate('document.documentElement.scrollWidth')
    assert width <= opened.viewport_size['width']
    opened.close()


browser_test = pytest.mark.skipif(
    not shots.CHROMIUM.exists(), reason='Chromium is not installed'
)


@pytest.mark.slow
@browser_test
def test_page_translates_and_switches_heads_off_in_one_run(tab, address):
    tab.goto(address)
    one, other = tab.locator('.run').all()
    for run in one, other:
        run.locator('.tokens button').first.wait_for()
    examples = [run.locator('.translation').inner_text() for run in (one, other)]
    tab.locator('#text').fill('My dog sleeps.')
    tab.keyboard.press('Enter')
    for run, example in zip((one, other), examples, strict=True):
        old = run.locator('.translation').get_by_text(example, exact=True)
        old.wait_for(state='detached')
    texts = [run.locator('.translation').inner_text() for run in (one, other)]
    assert texts[0] == texts[1]
    # Time goes back by a click and by a key.
    one.locator('.tokens button').nth(1).click()
    assert one.locator('.which').inner_text().endswith('token 2')
    one.get_by_label('Decoding step').press('ArrowLeft')
    assert one.locator('.which').inner_text().endswith('token 1')
    # The keyboard chooses another map, and keeps its focus.
    button = one.get_by_label('Show Cross-attention, layer 1, head 0')
    button.press('Enter')
    assert one.locator('.title').inner_text().endswith('layer 1, head 0')
    focus = tab.evaluate('document.activeElement.ariaLabel')
    assert focus == button.get_attribute('aria-label')
    # A head and a layer change in one run only.
    unchanged = other.inner_text()
    one.get_by_label('Cross-attention, layer 1, head 1: on').uncheck()
    one.get_by_label('Layer 0 of the decoder: on').uncheck()
    one.locator('.whole').wait_for()
    assert texts[0] == one.locator('.whole').inner_text().strip()
    assert other.inner_text() == unchanged
    # The second result of the search.
    one.locator('.results button').nth(1).click()
    one.locator('.results li:nth-child(2) [aria-pressed=true]').wait_for()
    assert one.locator('.tree .shown').count() > 1


@pytest.mark.slow
@browser_test
def test_page_compares_a_scaled_head_with_the_original(tab, address):
    tab.goto(address)
    one, _ = tab.locator('.run').all()
    one.locator('.tokens button').first.wait_for()
    lens = one.locator('.lens')
    tokens = one.locator('.tokens b').all_inner_texts()
    assert lens.locator('thead th').all_inner_texts() == tokens
    translation = one.locator('.translation').inner_text()
    cells = lens.inner_text()
    one.get_by_role('combobox', name='Layer').select_option('decoder layer 1')
    one.get_by_label('Component').select_option('feed-forward network')
    factor = one.get_by_label('Factor')
    for value in '1', '-40':
        factor.fill(value)
        factor.press('Enter')
        one.get_by_text(f'decoder layer 1, feed-forward network: × {value}').wait_for()
        assert one.locator('.whole').inner_text().strip() == translation
        assert (lens.inner_text() == cells) == (value == '1')
    factor.fill('much')
    factor.press('Enter')
    tab.locator('#status.wrong').wait_for()
    # The page keeps the last valid change.
    change = one.get_by_role('button', name='Remove decoder layer 1')
    assert '× -40' in change.inner_text()
    change.click()
    one.locator('.compare').wait_for(state='hidden')
    assert lens.inner_text() == cells


@pytest.mark.slow
@browser_test
@pytest.mark.usefixtures('cache')
def test_written_page_works_without_a_server(tab, workdir, tmp_path, monkeypatch):
    write_page(workdir, tmp_path / 'x.html', f'{HOSTILE}\nMy cat.\n', monkeypatch)
    tab.goto((tmp_path / 'x.html').as_uri())
    tab.locator('.tokens button').first.wait_for()
    assert tab.locator('#sentences option').all_inner_texts() == [HOSTILE, 'My cat.']
    pieces = tab.locator('.pieces').inner_text()
    tab.locator('#sentences').select_option('My cat.')
    assert tab.locator('.pieces').inner_text() != pieces
    assert tab.locator('.heads').inner_text() and not tab.locator('.switch').count()
    # Scrolling areas have keyboard focus, and tokens are named by their text.
    for area in tab.locator('.scrolls').all():
        area.focus()
        assert tab.evaluate('document.activeElement.ariaLabel')
    assert tab.locator('.tokens [aria-label]').count() == 0

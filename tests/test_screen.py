"""What a run shows: lines in a file, a live line on a terminal, nothing if closed."""

import io
import os

import pytest

from experiments.command_line.screen import Screen


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv('TERM', 'xterm')
    monkeypatch.setenv('COLUMNS', '100')
    return Terminal()


def test_a_file_gets_plain_lines():
    out, times = io.StringIO(), iter([0.0, 0.0, 10.0, 20.0])
    screen = Screen(out, lambda: next(times))
    screen.begin('loading data', quiet=True)
    for pairs in (100, 200):
        screen.begin('tokenising')
        screen.count(pairs, None, 'pairs')
    screen.train(steps=1000, first=100)
    screen.step(200)
    screen.metrics(200, loss=3.14159, tokens_per_second=12345.6)
    screen.say('hello')
    screen.metrics(1000, loss=1)
    screen.close()
    assert out.getvalue() == (
        'tokenising …\n'
        'step 200/1,000  loss 3.142  tokens per second 12,346  1:20 left\n'
        'hello\n'
        'step 1,000/1,000  loss 1  0:00 left\n'
    )


def test_a_terminal_shows_every_phase_and_keeps_what_was_said(terminal):
    screen = Screen(terminal)

    def shown():
        terminal.truncate(terminal.seek(0))
        screen._progress.refresh()
        return terminal.getvalue()

    assert 'starting' in shown()
    for phase in ('loading data', 'compiling'):
        screen.begin(phase, quiet=True)
        assert phase in shown() and screen.phase == phase
    screen.begin('tokenising')
    screen.count(12_000, None, 'pairs')
    assert '12,000 pairs' in shown()
    screen.train(steps=50, first=0)
    screen.metrics(20, loss=2.5)
    screen.step(21)
    assert 'training: step 21/50' in shown() and 'loss 2.5' in shown()
    screen.begin('evaluating', quiet=True)
    screen.count(64, 200, 'sentences of val')
    assert '64/200 sentences of val' in shown()
    assert 'loss 2.5' not in shown()
    screen.say('hello [bold]')
    assert 'hello [bold]\n' in terminal.getvalue()
    screen.close()
    assert terminal.getvalue().endswith('\x1b[?25h\r\x1b[1A\x1b[2K')  # nothing stays
    screen.begin('scoring', quiet=True)
    screen.close()


def test_a_run_goes_on_where_nobody_reads():
    reads, writes = os.pipe()
    stream = open(writes, 'w', encoding='utf-8')
    screen = Screen(stream)
    screen.say('seen')
    assert os.read(reads, 100) == b'seen\n'
    os.close(reads)
    screen.say('not seen')
    stream.close()  # what had been buffered is flushed, and no error

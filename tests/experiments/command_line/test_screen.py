"""Tests of a run's output."""

import io
import os
import sys

import pytest
from terminals import Terminal

from experiments.command_line import command
from experiments.command_line import screen as screens
from experiments.command_line.screen import Screen

ERASED = '\x1b[?25h\r\x1b[1A\x1b[2K'  # the last line, with a visible cursor


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv('TERM', 'xterm')
    monkeypatch.setenv('COLUMNS', '100')
    return Terminal()


def test_file_gets_plain_lines():
    out, now = io.StringIO(), 0.0
    screen = Screen(out)
    screen._progress.get_time = lambda: now
    screen.begin('loading data', quiet=True)
    for pairs in (100, 200):
        screen.begin('tokenizing')
        screen.count(pairs, None, 'pairs')
    screen.begin('compiling', quiet=True)
    screen.step(101, 1000)
    screen.metrics(101, 1000, loss=4)
    now = 10.0
    screen.step(201, 1000)
    screen.metrics(200, 1000, loss=3.14159, tokens_per_second=12345.6)
    screen.say('hello')
    screen.step(1000, 1000)
    screen.metrics(1000, 1000, loss=1)
    screen.close()
    assert out.getvalue() == (
        'tokenizing …\n'
        'step 101/1,000  loss 4  ? left\n'
        'step 200/1,000  loss 3.142  tokens per second 12,346  1:20 left\n'
        'hello\n'
        'step 1,000/1,000  loss 1  0:00 left\n'
    )


def test_control_characters_in_messages_are_escaped(terminal):
    for out in (io.StringIO(), terminal):
        screen = Screen(out)
        screen.begin('reading \x9b2J')
        screen.count(1, 2, 'sentences of \x9b2J')
        screen.metrics(1, 2, **{'loss/\x9b2J': 1.0})
        screen.say('hello \x9b2J')
        screen.close()
        shown = out.getvalue()
        assert r'hello \x9b2J' in shown and '\x9b' not in shown


def test_terminal_without_cursor_movement_gets_lines(terminal, monkeypatch):
    monkeypatch.setenv('TERM', 'dumb')
    screen = Screen(terminal)
    screen.begin('tokenizing')
    screen.close()
    assert terminal.getvalue() == 'tokenizing …\n'


def test_terminal_shows_each_phase_and_keeps_messages(terminal):
    now = 0.0
    screen = Screen(terminal)
    screen._progress.get_time = lambda: now

    def shown():
        terminal.truncate(terminal.seek(0))
        screen._progress.refresh()
        return terminal.getvalue()

    assert 'starting' in shown()
    screen.begin('tokenizing')
    screen.count(12_000, None, 'pairs')
    assert 'tokenizing' in shown() and '12,000 pairs' in shown()
    screen.metrics(20, 50, loss=2.5)
    screen.step(21, 50)
    assert 'training' in shown() and '21/50 steps  loss 2.5' in shown()
    screen.begin('evaluating', quiet=True)
    for done in (0, 40, 80):
        screen.count(done, 200, 'sentences of val')
        now += 30.0
    assert '80/200 sentences of val' in shown() and 'loss 2.5' not in shown()
    assert '0:01:30' in shown()  # for the 120 that are left
    screen.say('hello [bold]')
    assert 'hello [bold]\n' in terminal.getvalue()
    screen.close()
    assert terminal.getvalue().endswith(ERASED)


def test_run_continues_when_its_output_pipe_is_closed():
    reading, writing = os.pipe()
    stream = open(writing, 'w', encoding='utf-8')
    screen = Screen(stream)
    screen.say('seen')
    assert os.read(reading, 100) == b'seen\n'
    os.close(reading)
    screen.say('not seen')
    stream.close()  # flushes without an error


def test_stderr_shows_progress_only_on_a_terminal(terminal, monkeypatch, capsys):
    with screens.on_stderr('reading') as screen:
        screen.begin('scoring')
    assert capsys.readouterr() == ('', '')
    monkeypatch.setattr(sys, 'stderr', terminal)
    with screens.on_stderr('reading'):
        print('a result')  # on stdout, which has no progress line
        print('a warning', file=sys.stderr)
    shown = terminal.getvalue()
    assert 'reading' in shown and 'a warning\n' in shown and shown.endswith(ERASED)
    assert capsys.readouterr() == ('a result\n', '')


def test_control_characters_in_a_traceback_are_escaped(capsys):
    error = ValueError('\x9b2J')
    command._print_error(ValueError, error, None)
    assert capsys.readouterr().err == 'ValueError: \\x9b2J\n'

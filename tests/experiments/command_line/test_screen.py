"""Tests of a run's output."""

import io
import os
import subprocess
import sys

import pytest
from terminals import Terminal

from experiments.command_line import screen as screens
from experiments.command_line.screen import Screen


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv('TERM', 'xterm')
    monkeypatch.setenv('COLUMNS', '100')
    return Terminal()


def test_a_file_gets_plain_lines():
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


def test_texts_of_files_are_shown_without_control_characters(terminal):
    for out in (io.StringIO(), terminal):
        screen = Screen(out)
        screen.begin('reading \x9b2J')
        screen.count(1, 2, 'sentences of \x9b2J')
        screen.close()
        screen = Screen(out)
        screen.step(1, 2)
        screen.metrics(1, 2, **{'loss/\x9b2J': 1.0})
        screen.say('said \x9b2J')
        screen.close()
        shown = out.getvalue()
        assert r'said \x9b2J' in shown and '\x9b' not in shown


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(terminal, monkeypatch):
    monkeypatch.setenv('TERM', 'dumb')
    screen = Screen(terminal)
    screen.begin('tokenizing')
    screen.close()
    assert terminal.getvalue() == 'tokenizing …\n'


def test_a_terminal_shows_every_phase_and_keeps_what_was_said(terminal):
    now = 0.0
    screen = Screen(terminal)
    screen._progress.get_time = lambda: now

    def shown():
        terminal.truncate(terminal.seek(0))
        screen._progress.refresh()
        return terminal.getvalue()

    assert 'starting' in shown()
    for phase in ('loading data', 'compiling'):
        screen.begin(phase, quiet=True)
        assert phase in shown()
    screen.begin('tokenizing')
    screen.count(12_000, None, 'pairs')
    assert '12,000 pairs' in shown()
    screen.metrics(20, 50, loss=2.5)
    screen.step(21, 50)
    assert 'training' in shown() and '21/50 steps  loss 2.5' in shown()
    screen.begin('evaluating', quiet=True)
    screen.count(200, 200, 'sentences of news')
    for done in (0, 40, 80):
        screen.count(done, 200, 'sentences of val')
        now += 30.0
    assert '80/200 sentences of val' in shown()
    assert '0:01:30' in shown()  # for the 120 that are left
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


def test_beside_a_result_only_a_terminal_shows_something(terminal, monkeypatch, capsys):
    with screens.on_stderr('reading') as screen:
        screen.begin('scoring')
        screen.count(1, 2, 'runs')
    assert capsys.readouterr() == ('', '')
    monkeypatch.setattr(sys, 'stderr', terminal)
    with screens.on_stderr('reading') as screen:
        assert 'reading' in terminal.getvalue()
        print('a result')  # is not drawn into by the line, nor the line into it
        print('a warning', file=sys.stderr)
        assert 'a warning\n' in terminal.getvalue()
    assert terminal.getvalue().endswith('\x1b[?25h\r\x1b[1A\x1b[2K')
    assert capsys.readouterr() == ('a result\n', '')


def test_a_traceback_has_no_control_characters():
    code = """
import sys, types
from experiments.command_line import command
def main():
    raise ValueError('\\x9b2J')
sys.modules['my_command'] = types.SimpleNamespace(main=main)
command.run('my_command')
"""
    done = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, encoding='utf-8'
    )
    assert done.returncode == 1 and 'Traceback' in done.stderr
    assert done.stderr.endswith('ValueError: \\x9b2J\n')

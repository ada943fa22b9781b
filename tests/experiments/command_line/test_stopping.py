"""Tests that a signal ends a process soon, even during C code."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SIGNALS = [signal.SIGTERM, signal.SIGINT]
needs_sighup = pytest.mark.skipif(os.name != 'posix', reason='has no SIGHUP')


@pytest.fixture(autouse=True)
def hangups_end_processes():
    """Restores SIGHUP, which processes started under `nohup` would ignore."""
    if os.name != 'posix':
        yield
        return
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


WATCHES_SIGNALS = """
import hashlib, os, signal, sys, time
from experiments.command_line import stopping
stopping.watch()
def compile_for_minutes():
    print('ready', flush=True)
    hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)  # in C, like a compiler
def wait():
    print('ready', flush=True)
    time.sleep(60)
"""
LOOP = """
with stopping.delay_stop() as stop_requested:
    print('ready', flush=True)
    while not stop_requested():
        time.sleep(0.01)
    {}
"""
SAVES = "print('saved', flush=True); stopping.end()"


def after_signals(code, *numbers):
    """Signals a process when it is ready; returns its signal and further output."""
    command = [sys.executable, '-c', WATCHES_SIGNALS + code]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        for number in numbers:
            assert process.stdout.readline() == 'ready\n'
            process.send_signal(number)
        out, _ = process.communicate(timeout=20)
    return -process.returncode, out


@pytest.mark.parametrize('number', SIGNALS)
@pytest.mark.parametrize('work', ['compile_for_minutes', 'wait'])
def test_signal_ends_a_process_even_in_c_code(work, number):
    assert after_signals(f'{work}()', number) == (number, '')


@pytest.mark.parametrize('number', SIGNALS)
def test_loop_saves_before_the_signal_ends_it(number):
    assert after_signals(LOOP.format(SAVES), number) == (number, 'saved\n')


@needs_sighup
def test_hangup_counts_as_sigterm():
    assert after_signals('wait()', signal.SIGHUP) == (signal.SIGTERM, '')
    saved = after_signals(LOOP.format(SAVES), signal.SIGHUP)
    assert saved == (signal.SIGTERM, 'saved\n')


@needs_sighup
def test_nohup_keeps_hangups_ignored():
    code = "print('ready', flush=True)\nsys.stdin.readline()\nprint('continues')\n"
    command = ['nohup', sys.executable, '-c', WATCHES_SIGNALS + code]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:
        assert process.stdout.readline() == 'ready\n'
        process.send_signal(signal.SIGHUP)
        out, _ = process.communicate('\n', timeout=20)
    assert (process.returncode, out) == (0, 'continues\n')


def in_terminal(code, *numbers):
    """Runs code in a terminal of its own; returns its status and output.

    Signals the process when it is ready, then closes the terminal without signals.
    """
    # `preexec_fn` would fork, which JAX's threads forbid.
    controls = 'import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)'
    parent, child = os.openpty()
    with subprocess.Popen(
        [sys.executable, '-c', f'{controls}\n{WATCHES_SIGNALS}{code}'],
        **dict.fromkeys(('stdin', 'stdout', 'stderr'), child),
        cwd=ROOT,
        start_new_session=True,
    ) as process:
        os.close(child)
        with open(parent, 'rb', buffering=0) as terminal:
            shown = b''
            while b'ready' not in shown:
                shown += terminal.read(1000)
            for number in numbers:
                process.send_signal(number)
                process.wait(timeout=20)
        return process.wait(timeout=20), shown


@needs_sighup
def test_loop_saves_after_its_terminal_is_closed(tmp_path):
    saved = tmp_path / 'saved'
    saves = f"print('saving', flush=True); open({str(saved)!r}, 'w').close()"
    status, _ = in_terminal(LOOP.format(saves))
    assert status == -signal.SIGTERM
    assert saved.exists()


@needs_sighup
def test_cursor_of_a_terminal_is_visible_after_a_signal():
    code = """
from experiments.command_line.screen import Screen
screen = Screen()
screen.begin('training')
screen.say('ready')
time.sleep(60)
"""
    status, shown = in_terminal(code, signal.SIGINT)
    assert status == -signal.SIGINT
    assert b'training' in shown
    assert shown.rindex(b'\x1b[?25h') > shown.rindex(b'\x1b[?25l')


def test_process_ends_after_a_block_that_does_not_end_it():
    code = LOOP.format('print("last", flush=True)') + "print('continues')"
    assert after_signals(code, signal.SIGTERM) == (signal.SIGTERM, 'last\n')


def test_second_ctrl_c_ends_a_process_that_is_saving():
    code = LOOP.format('compile_for_minutes()')
    assert after_signals(code, signal.SIGINT, signal.SIGINT) == (signal.SIGINT, '')


def test_error_in_the_loop_restores_the_immediate_end():
    code = """
try:
    with stopping.delay_stop():
        raise ValueError
except ValueError:
    wait()
"""
    assert after_signals(code, signal.SIGTERM) == (signal.SIGTERM, '')


def test_keyboard_interrupt_is_raised_after_the_block_outside_commands():
    code = """
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    with stopping.delay_stop() as stop_requested:
        signal.raise_signal(signal.SIGINT)
        assert stop_requested()
except KeyboardInterrupt:
    wait()
"""
    assert after_signals(code, signal.SIGTERM) == (signal.SIGTERM, '')


def test_every_command_handles_signals_before_its_imports():
    files = (ROOT / 'experiments').glob('*.py')
    codes = [file.read_text('utf-8') for file in files]
    codes = [code for code in codes if '    command.run(' in code]
    assert len(codes) >= 10
    for code in codes:
        first_import = re.search('^(import|from) ', code, re.MULTILINE)
        assert code.index('    command.run(') < first_import.start()


# The first is imported early, the others late.
@pytest.mark.parametrize(
    ('module', 'number'),
    [('absl', signal.SIGINT), ('jax', signal.SIGINT), ('numpy', signal.SIGTERM)],
)
def test_signal_ends_a_command_during_its_imports(tmp_path, module, number):
    waits = "import time\nprint('ready', flush=True)\ntime.sleep(60)\n"
    (tmp_path / f'{module}.py').write_text(waits)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    # The flags are valid, since slow packages are imported after them.
    argv = [sys.executable, '-m', 'experiments.translate', '--workdir=none']
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with subprocess.Popen(
        argv, cwd=ROOT, env=os.environ | {'PYTHONPATH': path}, **pipes
    ) as process:
        assert process.stdout.readline() == 'ready\n'
        process.send_signal(number)
        printed = process.communicate(timeout=20)
    assert (process.returncode, *printed) == (-number, '', '')

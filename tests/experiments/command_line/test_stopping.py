"""Tests that a signal ends a process soon, even during C code."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def hangups_end_processes():
    """Restores SIGHUP, which processes started under `nohup` would ignore."""
    if os.name != 'posix':
        yield
        return
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


BEGINS = """
import hashlib, os, signal, sys, time
from experiments.command_line import stopping
stopping.watch()
def compile_for_long():
    print('ready', flush=True)
    hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)  # in C, as a compiler is
def wait():
    print('ready', flush=True)
    time.sleep(60)
"""


def stopped(code, *numbers):
    """Signals a process when it is ready; returns its signal and further output."""
    command = [sys.executable, '-c', BEGINS + code]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        for number in numbers:
            assert process.stdout.readline() == 'ready\n'
            process.send_signal(number)
        began = time.monotonic()
        out, _ = process.communicate(timeout=20)
        assert time.monotonic() - began < 5  # one second, on a machine that is idle
    return -process.returncode, out


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize('work', ['compile_for_long', 'wait'])
def test_signals_end_a_process_in_any_phase(work, number):
    assert stopped(f'{work}()', number) == (number, '')


IMPORTED = "import time\nprint('ready', flush=True)\ntime.sleep(60)\n"

DELAYED = """
with stopping.delay_stop() as is_asked:
    print('ready', flush=True)
    while not is_asked():
        time.sleep(0.01)
    {}
"""
SAVES = "print('saved', flush=True); stopping.end()"


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_a_loop_saves_before_the_end(number):
    assert stopped(DELAYED.format(SAVES), number) == (number, 'saved\n')


needs_sighup = pytest.mark.skipif(os.name != 'posix', reason='has no SIGHUP')


@needs_sighup
def test_a_hangup_counts_as_sigterm():
    assert stopped('wait()', signal.SIGHUP) == (signal.SIGTERM, '')
    found = stopped(DELAYED.format(SAVES), signal.SIGHUP)
    assert found == (signal.SIGTERM, 'saved\n')


@needs_sighup
def test_nohup_keeps_a_process_from_a_hangup():
    code = """
print('ready', flush=True)
sys.stdin.readline()
print('goes on')
"""
    command = ['nohup', sys.executable, '-c', BEGINS + code]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:
        assert process.stdout.readline() == 'ready\n'
        process.send_signal(signal.SIGHUP)
        out, _ = process.communicate('\n', timeout=20)
    assert (process.returncode, out) == (0, 'goes on\n')


def in_terminal(code, *numbers):
    """Runs code in a terminal of its own; returns its status and what was shown.

    Signals the process when it is ready. Then the terminal is gone, without signals.
    """
    # Not by `preexec_fn`, which forks, and JAX's threads may be there already.
    controls = 'import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)'
    ours, theirs = os.openpty()
    with subprocess.Popen(
        [sys.executable, '-c', f'{controls}\n{BEGINS}{code}'],
        **dict.fromkeys(('stdin', 'stdout', 'stderr'), theirs),
        cwd=ROOT,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        with open(ours, 'rb', buffering=0) as terminal:
            shown = b''
            while b'ready' not in shown:
                shown += terminal.read(1000)
            for number in numbers:
                process.send_signal(number)
                process.wait(timeout=20)
        return process.wait(timeout=20), shown


@needs_sighup
def test_a_terminal_that_is_gone_keeps_nobody_from_saving(tmp_path):
    saved = tmp_path / 'saved'
    saves = f"print('saving', flush=True); open({str(saved)!r}, 'w').close()"
    status, _ = in_terminal(DELAYED.format(saves))
    assert status == -signal.SIGTERM
    assert saved.exists()


@needs_sighup
def test_a_signal_leaves_the_cursor_of_a_terminal_visible():
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


def test_a_block_that_ends_without_saving_is_followed_by_the_end():
    code = DELAYED.format('print("last", flush=True)') + "print('goes on')"
    assert stopped(code, signal.SIGTERM) == (signal.SIGTERM, 'last\n')


def test_a_second_ctrl_c_ends_who_still_saves():
    numbers = (signal.SIGINT, signal.SIGINT)
    found = stopped(DELAYED.format('compile_for_long()'), *numbers)
    assert found == (signal.SIGINT, '')


def test_an_error_in_the_loop_restores_the_immediate_end():
    code = """
try:
    with stopping.delay_stop():
        raise ValueError
except ValueError:
    wait()
"""
    assert stopped(code, signal.SIGTERM) == (signal.SIGTERM, '')


def test_outside_of_commands_an_interrupt_is_raised_after_the_block():
    code = """
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    with stopping.delay_stop() as is_asked:
        signal.raise_signal(signal.SIGINT)
        assert is_asked()
except KeyboardInterrupt:
    wait()
"""
    assert stopped(code, signal.SIGTERM) == (signal.SIGTERM, '')


COMMANDS = sorted(
    file.stem
    for file in (ROOT / 'experiments').glob('*.py')
    if '    command.run(' in file.read_text('utf-8')
)
MOMENTS = [(command, 'absl', signal.SIGINT) for command in COMMANDS]
MOMENTS += [
    ('run', 'argparse', signal.SIGTERM),
    ('evaluate', 'jax', signal.SIGINT),
    ('translate', 'numpy', signal.SIGTERM),
]


@pytest.mark.parametrize(('command', 'module', 'number'), MOMENTS)
def test_a_command_that_is_still_being_imported_ends(tmp_path, command, module, number):
    (tmp_path / f'{module}.py').write_text(IMPORTED)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    # With flags that are in order, for what takes long is imported after them.
    argv = [sys.executable, '-m', f'experiments.{command}', '--workdir=none']
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with subprocess.Popen(
        argv, cwd=ROOT, env=os.environ | {'PYTHONPATH': path}, **pipes
    ) as process:
        assert process.stdout.readline() == 'ready\n'
        process.send_signal(number)
        printed = process.communicate(timeout=20)
    assert (process.returncode, *printed) == (-number, '', '')

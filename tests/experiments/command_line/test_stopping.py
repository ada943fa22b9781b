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
stopping.set_exit_message(lambda: 'nothing was lost')
def compile_for_long():
    print('ready', flush=True)
    hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)  # in C, as a compiler is
def wait():
    print('ready', flush=True)
    time.sleep(60)
"""


def stopped(code, *numbers):
    """Signals a process when it is ready; returns its status and last line."""
    command = [sys.executable, '-c', BEGINS + code]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        for number in numbers:
            assert process.stdout.readline() == 'ready\n'
            process.send_signal(number)
        out, _ = process.communicate(timeout=20)
    return process.returncode, out


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize('work', ['compile_for_long', 'wait'])
def test_a_process_ends_whatever_it_does_and_says_a_line(work, number):
    assert stopped(f'{work}()', number) == (128 + number, 'nothing was lost\n')


IMPORTED = "import time\nprint('ready', flush=True)\ntime.sleep(60)\n"

ASKED = """
with stopping.delay_stop() as is_asked:
    print('ready', flush=True)
    while not is_asked():
        time.sleep(0.01)
    {}
"""


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_whoever_asks_may_save_before_the_end(number):
    saves = "stopping.end(lambda: 'saved')"
    assert stopped(ASKED.format(saves), number) == (128 + number, 'saved\n')


needs_sighup = pytest.mark.skipif(os.name != 'posix', reason='has no SIGHUP')


@needs_sighup
def test_a_hangup_counts_as_sigterm():
    saves = ASKED.format("stopping.end(lambda: 'saved')")
    assert stopped('wait()', signal.SIGHUP) == (143, 'nothing was lost\n')
    assert stopped(saves, signal.SIGHUP) == (143, 'saved\n')


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


@needs_sighup
def test_a_terminal_that_is_gone_keeps_nobody_from_saving(tmp_path):
    # Not by `preexec_fn`, which forks, and JAX's threads may be there already.
    controls = 'import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)'
    saved = tmp_path / 'saved'
    saves = f"print('saving', flush=True); open({str(saved)!r}, 'w').close()"
    ours, theirs = os.openpty()
    with subprocess.Popen(
        [sys.executable, '-c', f'{controls}\n{BEGINS}{ASKED.format(saves)}'],
        **dict.fromkeys(('stdin', 'stdout', 'stderr'), theirs),
        cwd=ROOT,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        with open(ours, 'rb', buffering=0) as terminal:
            while b'ready' not in terminal.read(1000):
                pass
        assert process.wait(timeout=20) == 143
    assert saved.exists()


def test_whoever_asked_and_goes_on_is_ended():
    code = ASKED.format('print("saved", flush=True)') + "print('goes on')"
    assert stopped(code, signal.SIGTERM) == (143, 'saved\nnothing was lost\n')


def test_a_second_ctrl_c_ends_who_still_saves():
    numbers = (signal.SIGINT, signal.SIGINT)
    assert stopped(ASKED.format('compile_for_long()'), *numbers) == (130, '')


def test_while_all_is_saved_nobody_is_asked():
    code = 'with stopping.delay_stop(), stopping.allow_stop(): compile_for_long()'
    assert stopped(code, signal.SIGTERM) == (143, 'nothing was lost\n')


def test_an_error_in_the_loop_gives_signals_back_to_the_watcher():
    code = """
try:
    with stopping.delay_stop():
        raise ValueError
except ValueError:
    wait()
"""
    assert stopped(code, signal.SIGTERM) == (143, 'nothing was lost\n')


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
def test_a_command_that_is_still_being_imported_ends_with_a_line(
    tmp_path, command, module, number
):
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
    assert (process.returncode, *printed) == (128 + number, '', 'stopped\n')


def test_a_child_that_is_ended_does_not_end_its_parent():
    code = """
child = os.fork()
if child == 0:
    time.sleep(60)
time.sleep(0.5)
os.kill(child, signal.SIGTERM)
assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM
wait()
"""
    assert stopped(code, signal.SIGINT)[0] == 130


def test_a_process_ends_although_nobody_reads_what_it_prints():
    code = "print('ready', flush=True)\nsys.stdout.write('x' * 10**6)"
    command = [sys.executable, '-c', BEGINS + code]
    # Without a buffer, Python drops what a signal has kept it from writing.
    environment = {k: v for k, v in os.environ.items() if k != 'PYTHONUNBUFFERED'}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b'ready\n'
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 143

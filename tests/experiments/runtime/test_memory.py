"""Tests of memory."""

import mmap
import subprocess
import sys
from types import SimpleNamespace

import jax
import pytest

from experiments.runtime import memory

MEGA = 10**6


def take(size):
    """Touches this many bytes and unmaps them. An allocator might keep freed memory."""
    with mmap.mmap(-1, size) as pages:
        for start in range(0, size, mmap.PAGESIZE):
            pages[start] = 1


@pytest.mark.skipif(sys.platform != 'linux', reason='nothing else resets the peak')
def test_the_peak_is_that_since_the_beginning():
    before = memory.Peak()
    take(200 * MEGA)
    largest = before.bytes()
    assert largest > 200 * MEGA
    after = memory.Peak()
    take(40 * MEGA)
    assert 40 * MEGA < after.bytes() < largest


class Device:
    def __init__(self, stats):
        self.memory_stats = lambda: stats


def devices(monkeypatch, *peaks):
    stats = [{'peak_bytes_in_use': peak} if peak else None for peak in peaks]
    monkeypatch.setattr(jax, 'local_devices', lambda: [Device(x) for x in stats])


def test_devices_that_tell_their_peak_are_believed(monkeypatch):
    devices(monkeypatch, 5, 7)
    peak = memory.Peak()
    devices(monkeypatch, 9, 8)
    assert peak.bytes() == 9


def test_a_peak_of_an_earlier_run_of_the_process_is_not_this_ones(monkeypatch):
    devices(monkeypatch, 7)
    assert memory.Peak().bytes() is None


def test_what_is_freed_is_kept(monkeypatch):
    options = {}
    libc = SimpleNamespace(mallopt=options.__setitem__)
    monkeypatch.setattr(memory.ctypes, 'CDLL', lambda name: libc)
    memory.keep_freed()
    assert options.pop(-8) == 1  # arena
    assert options.keys() == {-1, -3} and min(options.values()) >= 1 << 30


def test_every_command_keeps_freed_memory():
    code = """
import sys, types
from experiments.command_line import command
from experiments.runtime import memory
memory.keep_freed = lambda: print('kept')
sys.modules['my_command'] = types.SimpleNamespace(main=lambda: None)
command.run('my_command')
"""
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, 'kept\n'), done.stderr

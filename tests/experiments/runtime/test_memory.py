"""Tests of malloc's settings and of peak memory."""

import mmap
import subprocess
import sys
from types import SimpleNamespace

import jax
import pytest

from experiments.runtime import memory

MEGA = 10**6


def touch(size):
    """Touches this many bytes and unmaps them, since malloc might keep freed memory."""
    with mmap.mmap(-1, size) as pages:
        for start in range(0, size, mmap.PAGESIZE):
            pages[start] = 1


@pytest.mark.skipif(sys.platform != 'linux', reason='needs /proc')
def test_peak_is_measured_since_its_creation():
    before = memory.Peak()
    touch(200 * MEGA)
    largest = before.bytes()
    assert largest > 200 * MEGA
    after = memory.Peak()
    touch(40 * MEGA)
    assert 40 * MEGA < after.bytes() < largest


def test_peak_of_devices_is_that_of_this_run_or_none(monkeypatch):
    def set_peaks(*peaks):
        stats = [{'peak_bytes_in_use': peak} if peak else None for peak in peaks]
        devices = [SimpleNamespace(memory_stats=lambda x=x: x) for x in stats]
        monkeypatch.setattr(jax, 'local_devices', lambda: devices)

    set_peaks(5, 7)
    peak = memory.Peak()
    assert peak.bytes() is None  # 7 may be from an earlier run of the process
    set_peaks(9, 8)
    assert peak.bytes() == 9


def test_malloc_keeps_freed_memory(monkeypatch):
    options = {}
    libc = SimpleNamespace(mallopt=options.__setitem__)
    monkeypatch.setattr(memory.ctypes, 'CDLL', lambda name: libc)
    memory.keep_freed()
    assert options.pop(-8) == 1  # arena
    assert options.keys() == {-1, -3} and min(options.values()) >= 1 << 30


def test_every_command_sets_malloc_to_keep_freed_memory():
    code = """
import sys, types
from experiments.command_line import command
from experiments.runtime import memory
memory.keep_freed = lambda: print('called')
sys.modules['my_command'] = types.SimpleNamespace(main=lambda: None)
command.run('my_command')
"""
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, 'called\n'), done.stderr

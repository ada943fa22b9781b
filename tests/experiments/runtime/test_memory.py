"""Tests of memory."""

import mmap
import os
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


# A command restarts itself once, and only where that gives it huge pages.


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Returns the started commands, on a kernel with optional huge pages."""
    calls = []
    monkeypatch.setattr(memory, 'KERNEL', tmp_path / 'enabled')
    memory.KERNEL.write_text('always [madvise] never')
    monkeypatch.setattr(os, 'execve', lambda *call: calls.append(call))
    monkeypatch.delenv('GLIBC_TUNABLES', raising=False)
    return calls


def test_the_same_command_is_started_with_the_setting(started):
    memory.use_huge_pages()
    ((program, command, environment),) = started
    assert (program, command) == (sys.executable, sys.orig_argv)
    assert environment == os.environ | {'GLIBC_TUNABLES': 'glibc.malloc.hugetlb=1'}


def test_other_settings_are_kept(started, monkeypatch):
    monkeypatch.setenv('GLIBC_TUNABLES', 'glibc.malloc.check=3')
    memory.use_huge_pages()
    ((_, _, environment),) = started
    settings = environment['GLIBC_TUNABLES']
    assert settings == 'glibc.malloc.check=3:glibc.malloc.hugetlb=1'


def test_a_process_that_has_the_setting_goes_on(started, monkeypatch):
    monkeypatch.setenv('GLIBC_TUNABLES', 'glibc.malloc.hugetlb=0')
    memory.use_huge_pages()
    assert not started


@pytest.mark.parametrize(
    'kernel', [None, '[always] madvise never', 'always madvise [never]']
)
def test_nothing_is_started_where_it_would_change_nothing(started, kernel):
    memory.KERNEL.unlink() if kernel is None else memory.KERNEL.write_text(kernel)
    memory.use_huge_pages()
    assert not started


def test_what_is_freed_is_kept(monkeypatch):
    options = {}
    libc = SimpleNamespace(mallopt=options.__setitem__)
    monkeypatch.setattr(memory.ctypes, 'CDLL', lambda name: libc)
    memory.keep_freed()
    assert options.pop(-8) == 1  # arena
    assert options.keys() == {-1, -3} and min(options.values()) >= 1 << 30

"""The peak of memory: of this process, from when it is measured on."""

import mmap
import sys

import jax
import pytest

from experiments.runtime import memory

MEGA = 10**6


def take(size):
    """Takes so many bytes of memory, and gives them back to the system.

    What an allocator frees it may keep.
    """
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
    """A device that tells its peak, as GPUs do."""

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


def test_a_peak_of_an_earlier_run_of_the_process_is_not_this_ones(
    monkeypatch, tmp_path
):
    devices(monkeypatch, 7)
    assert memory.Peak().bytes() is None
    devices(monkeypatch, None)
    monkeypatch.setattr(memory, '_RESET', tmp_path / 'none' / 'here')
    assert memory.Peak().bytes() is None

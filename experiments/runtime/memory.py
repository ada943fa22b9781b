"""The most memory that a run took: of its devices where they tell, else of the process.

A process that makes several runs makes them one after another.
"""

import sys
from pathlib import Path

import jax

try:
    import resource
except ImportError:  # Windows
    resource = None

_RESET = Path('/proc/self/clear_refs')


class Peak:
    """Measures from when it is made.

    The peak of a process is reset where the system can do that (Linux). Where it
    cannot, as the peak of a GPU, a run that took less than one before it in the same
    process is not known.
    """

    def __init__(self) -> None:
        self._before = 0
        if _of_devices() is not None or not _reset():
            self._before = _peak() or 0

    def bytes(self) -> int | None:
        """The most memory since then; None where it is not known."""
        now = _peak()
        if now is None or now <= self._before:
            return None
        return now


def _peak() -> int | None:
    of_devices = _of_devices()
    return _of_process() if of_devices is None else of_devices


def _of_devices() -> int | None:
    """The largest of this process's devices; those of a CPU do not tell."""
    peaks = []
    for device in jax.local_devices():
        stats = device.memory_stats()
        if stats and 'peak_bytes_in_use' in stats:
            peaks.append(stats['peak_bytes_in_use'])
    return max(peaks, default=None)


def _of_process() -> int | None:
    if resource is None:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == 'darwin' else peak * 1024


def _reset() -> bool:
    """Begins to measure the process's peak anew; whether the system could."""
    try:
        _RESET.write_text('5', encoding='ascii')
    except OSError:
        return False
    return True

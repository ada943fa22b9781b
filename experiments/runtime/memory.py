"""The most memory that a run took: of its devices where they tell, else of the process.

A process that makes several runs makes them one after another.
"""

import contextlib
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

    The peak of a process begins anew where the system can do that (Linux). Where it
    cannot, as the peak of a GPU, a run that took less than one before it in the same
    process is not known.
    """

    def __init__(self) -> None:
        self._before = _peak() or 0
        if not _peaks_of_devices():
            with contextlib.suppress(OSError):
                _RESET.write_text('5', encoding='ascii')
                self._before = 0

    def bytes(self) -> int | None:
        """The most memory since then; None where it is not known."""
        now = _peak() or 0
        return now if now > self._before else None


def _peaks_of_devices() -> list[int]:
    """Those of this process's devices; those of a CPU do not tell."""
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    return [x['peak_bytes_in_use'] for x in stats if 'peak_bytes_in_use' in x]


def _peak() -> int | None:
    peaks = _peaks_of_devices()
    if peaks or resource is None:
        return max(peaks, default=None)
    of_process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return of_process if sys.platform == 'darwin' else of_process * 1024

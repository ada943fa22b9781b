"""Memory of the process: malloc, and peak usage.

Commands import this first, so JAX is imported only where memory is measured.
"""

import contextlib
import ctypes
from pathlib import Path

# mallopt's options (malloc.h): the free memory at which malloc trims the heap, the size
# from which it uses mmap, and the number of arenas for threads.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_ARENA_MAX = -8
_UNREACHABLE = 1 << 30  # a limit that is never reached


def release_freed() -> None:
    """Returns freed memory to the system; needs glibc."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed() -> None:
    """Lets malloc keep freed memory; needs glibc, and comes before JAX's threads.

    Otherwise, each step requests its memory again, and clearing it takes a fifth of a
    small model's training time and up to a quarter of a search's. Arenas of threads
    always return free memory, so new threads share the first arena.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        libc = ctypes.CDLL(None)
        for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            libc.mallopt(option, _UNREACHABLE)
        libc.mallopt(_ARENA_MAX, 1)


class Peak:
    """Peak memory since this object was created, for consecutive runs in one process.

    It is that of the devices if they report one (GPUs), else of the process (Linux). A
    device's peak cannot be reset, so a run below an earlier peak has none.
    """

    def __init__(self) -> None:
        release_freed()  # memory that earlier runs freed
        self._initial_peak = _peak_of_devices() or 0
        with contextlib.suppress(OSError):
            Path('/proc/self/clear_refs').write_text('5', encoding='ascii')

    def bytes(self) -> int | None:
        current = _peak_of_devices()
        if current is None:
            return _peak_of_process()
        return current if current > self._initial_peak else None


def _peak_of_devices() -> int | None:
    import jax

    device_stats = [device.memory_stats() or {} for device in jax.local_devices()]
    key = 'peak_bytes_in_use'
    return max((stats[key] for stats in device_stats if key in stats), default=None)


def _peak_of_process() -> int | None:
    with contextlib.suppress(OSError):
        status = Path('/proc/self/status').read_text('ascii').split()
        return int(status[status.index('VmHWM:') + 1]) * 1024
    return None

"""Memory of the process: huge pages, malloc, and peak usage.

Commands import this first, so JAX is imported only where memory is measured.
"""

import contextlib
import ctypes
import os
import sys
from pathlib import Path

SETTING = 'glibc.malloc.hugetlb'
KERNEL = Path('/sys/kernel/mm/transparent_hugepage/enabled')

# mallopt's options (malloc.h): the free memory at which malloc trims the heap, the size
# from which it uses mmap, and the number of arenas for threads.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_ARENA_MAX = -8
_NEVER = 1 << 30  # so large that neither limit is reached


def use_huge_pages() -> None:
    """Restarts this command once, with huge pages enabled in `GLIBC_TUNABLES`.

    Otherwise, clearing memory takes a fifth of a small model's training time. glibc
    reads the setting only at startup. It matters only if the kernel gives huge pages on
    request (`madvise`).
    """
    settings = os.environ.get('GLIBC_TUNABLES', '')
    with contextlib.suppress(OSError):
        if SETTING not in settings and '[madvise]' in KERNEL.read_text('ascii'):
            settings = f'{settings}:{SETTING}=1'.removeprefix(':')
            environment = os.environ | {'GLIBC_TUNABLES': settings}
            os.execve(sys.executable, sys.orig_argv, environment)


def release_freed() -> None:
    """Returns freed memory to the system; needs glibc."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed() -> None:
    """Lets malloc keep freed memory, for a process that from now on only decodes.

    Requesting memory again costs up to a quarter of the time. Arenas of threads always
    return free memory, so new threads share the first arena.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        libc = ctypes.CDLL(None)
        for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            libc.mallopt(option, _NEVER)
        libc.mallopt(_ARENA_MAX, 1)


class Peak:
    """Peak memory since this object was created, for consecutive runs in one process.

    It is that of the devices if they report one (GPUs), else of the process (Linux). A
    device's peak cannot be reset, so a run below an earlier peak has none.
    """

    def __init__(self) -> None:
        self._before = _peak_of_devices() or 0
        with contextlib.suppress(OSError):
            Path('/proc/self/clear_refs').write_text('5', encoding='ascii')

    def bytes(self) -> int | None:
        now = _peak_of_devices()
        if now is None:
            return _peak_of_process()
        return now if now > self._before else None


def _peak_of_devices() -> int | None:
    import jax

    every = [device.memory_stats() or {} for device in jax.local_devices()]
    key = 'peak_bytes_in_use'
    return max((stats[key] for stats in every if key in stats), default=None)


def _peak_of_process() -> int | None:
    with contextlib.suppress(OSError):
        status = Path('/proc/self/status').read_text('ascii').split()
        return int(status[status.index('VmHWM:') + 1]) * 1024
    return None

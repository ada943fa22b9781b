"""The memory of the process: huge pages, when it is given back, and its peak.

The first commands of a process are here, so nothing imports JAX but what measures.
"""

import contextlib
import ctypes
import os
import sys
from pathlib import Path

SETTING = 'glibc.malloc.hugetlb'
KERNEL = Path('/sys/kernel/mm/transparent_hugepage/enabled')

# mallopt's options (malloc.h): how much free memory malloc may hold before it gives it
# back, the smallest block that it requests from the system on its own, and how many
# arenas threads may have.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_ARENA_MAX = -8
_NEVER = 1 << 30  # a size that neither reaches


def use_huge_pages() -> None:
    """Restarts this command with glibc told to request huge pages; once.

    With pages of 4 KB the kernel spends a fifth of a small model's training on clearing
    what a step takes from malloc, with pages of 2 MB hardly any. glibc reads the
    setting only when a process starts, and it matters only where the kernel gives huge
    pages to those who request them (`madvise`).
    """
    settings = os.environ.get('GLIBC_TUNABLES', '')
    with contextlib.suppress(OSError):
        if SETTING not in settings and '[madvise]' in KERNEL.read_text('ascii'):
            settings = f'{settings}:{SETTING}=1'.removeprefix(':')
            environment = os.environ | {'GLIBC_TUNABLES': settings}
            os.execve(sys.executable, sys.orig_argv, environment)


def release_freed() -> None:
    """Gives memory that compiling has freed back to the system; needs glibc."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed() -> None:
    """Has malloc keep freed memory, for a process that only decodes from here on.

    A batch allocates and frees what decoding it takes, hundreds of megabytes a second:
    requesting them anew from the system would cost up to a quarter of its time. An
    arena of a thread gives back what is free whatever it is told, so all threads share
    the first one; those that allocated before keep theirs.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        libc = ctypes.CDLL(None)
        for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            libc.mallopt(option, _NEVER)
        libc.mallopt(_ARENA_MAX, 1)


class Peak:
    """The most memory that is taken from when this is made, by one run after another.

    It is that of the devices where they tell (GPUs), else that of the process (Linux).
    A device's peak does not begin anew: of a run that took less than one before it in
    the same process, it is not known.
    """

    def __init__(self) -> None:
        self._before = _peak_of_devices() or 0
        with contextlib.suppress(OSError):
            Path('/proc/self/clear_refs').write_text('5', encoding='ascii')

    def bytes(self) -> int | None:
        """The most memory since then; None where it is not known."""
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

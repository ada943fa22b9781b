"""Settings of glibc's malloc: huge pages for arrays, and when memory is given back."""

import contextlib
import ctypes
import os
import sys
from pathlib import Path

SETTING = 'glibc.malloc.hugetlb'
KERNEL = Path('/sys/kernel/mm/transparent_hugepage/enabled')

# mallopt's options (malloc.h): how much free memory malloc may hold before it gives it
# back, and the smallest block that it requests from the system on its own.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
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


def release() -> None:
    """Gives memory that compiling has freed back to the system; needs glibc."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def keep() -> None:
    """Has malloc keep freed memory, for a process that only decodes from here on.

    A decoding step allocates and frees a few megabytes, hundreds of times a second:
    requesting them anew from the system would cost 5 to 10 % of its time.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        libc = ctypes.CDLL(None)
        for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            libc.mallopt(option, _NEVER)

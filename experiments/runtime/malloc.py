"""Memory that malloc gives: huge pages for arrays, and none for what is over."""

import contextlib
import ctypes
import os
import sys
from pathlib import Path

SETTING = 'glibc.malloc.hugetlb'
KERNEL = Path('/sys/kernel/mm/transparent_hugepage/enabled')

# mallopt's options (malloc.h): what malloc may have left over before it gives it back, and the
# least block that it takes from the system by itself; and a size that neither reaches.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _NEVER = -1, -3, 1 << 30


def use_huge_pages() -> None:
    """Starts this command anew with glibc told to ask for huge pages; a second call does nothing.

    A compiled step takes hundreds of megabytes from malloc and gives them back at its end. In pages
    of 4 KB a fifth of a small model's training goes into the kernel's clearing of them, step after
    step; in pages of 2 MB hardly any. glibc reads the setting only when a process starts, and a
    kernel that gives huge pages to who asks (`madvise`) is where it matters.
    """
    settings = os.environ.get('GLIBC_TUNABLES', '')
    if (
        SETTING in settings
        or not KERNEL.exists()
        or '[madvise]' not in KERNEL.read_text(encoding='ascii')
    ):
        return
    settings = ':'.join(filter(None, [settings, f'{SETTING}=1']))
    os.execve(sys.executable, sys.orig_argv, os.environ | {'GLIBC_TUNABLES': settings})


def release() -> None:
    """Gives the system what compiling has left behind; where malloc is not glibc's, nothing."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def keep() -> None:
    """Has malloc keep what is freed, for a process that decodes and nothing else.

    A step of decoding takes and frees a few megabytes, hundreds of times a second: given back to
    the system and taken anew, they cost 5 to 10 % of its time. Without glibc, nothing happens.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        libc = ctypes.CDLL(None)
        for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            libc.mallopt(option, _NEVER)

"""Memory that malloc gives: huge pages for arrays, and none for what is over."""

import contextlib
import ctypes
import os
import sys
from pathlib import Path

SETTING = 'glibc.malloc.hugetlb'
KERNEL = Path('/sys/kernel/mm/transparent_hugepage/enabled')


def use_huge_pages() -> None:
    """Starts this command anew with glibc told to ask for huge pages; a second call does nothing.

    A compiled step takes hundreds of megabytes from malloc and gives them back at its end. In pages
    of 4 KB a fifth of a small model's training goes into the kernel's clearing of them, step after
    step; in pages of 2 MB hardly any. glibc reads the setting only when a process starts, and a
    kernel that gives huge pages to who asks (`madvise`) is where it matters.
    """
    settings = os.environ.get('GLIBC_TUNABLES', '')
    if SETTING in settings or not KERNEL.exists() or '[madvise]' not in KERNEL.read_text():
        return
    settings = ':'.join(filter(None, [settings, f'{SETTING}=1']))
    os.execve(sys.executable, sys.orig_argv, os.environ | {'GLIBC_TUNABLES': settings})


def release() -> None:
    """Gives the system what compiling has left behind; where malloc is not glibc's, nothing."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)

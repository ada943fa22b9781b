"""A command restarts itself once, and only where that gives it huge pages."""

import os
import sys
from types import SimpleNamespace

import pytest

from experiments.runtime import malloc


@pytest.fixture
def started(tmp_path, monkeypatch):
    """What was started, on a kernel that gives huge pages to who asks."""
    calls = []
    monkeypatch.setattr(malloc, 'KERNEL', tmp_path / 'enabled')
    malloc.KERNEL.write_text('always [madvise] never')
    monkeypatch.setattr(os, 'execve', lambda *call: calls.append(call))
    monkeypatch.delenv('GLIBC_TUNABLES', raising=False)
    return calls


def test_the_same_command_is_started_with_the_setting(started):
    malloc.use_huge_pages()
    ((program, command, environment),) = started
    assert (program, command) == (sys.executable, sys.orig_argv)
    assert environment == os.environ | {'GLIBC_TUNABLES': 'glibc.malloc.hugetlb=1'}


def test_other_settings_are_kept(started, monkeypatch):
    monkeypatch.setenv('GLIBC_TUNABLES', 'glibc.malloc.check=3')
    malloc.use_huge_pages()
    ((_, _, environment),) = started
    settings = environment['GLIBC_TUNABLES']
    assert settings == 'glibc.malloc.check=3:glibc.malloc.hugetlb=1'


def test_a_process_that_has_the_setting_goes_on(started, monkeypatch):
    monkeypatch.setenv('GLIBC_TUNABLES', 'glibc.malloc.hugetlb=0')
    malloc.use_huge_pages()
    assert not started


@pytest.mark.parametrize(
    'kernel', [None, '[always] madvise never', 'always madvise [never]']
)
def test_nothing_is_started_where_it_would_change_nothing(started, kernel):
    malloc.KERNEL.unlink() if kernel is None else malloc.KERNEL.write_text(kernel)
    malloc.use_huge_pages()
    assert not started


def test_what_is_freed_is_kept(monkeypatch):
    options = {}
    libc = SimpleNamespace(mallopt=options.__setitem__)
    monkeypatch.setattr(malloc.ctypes, 'CDLL', lambda name: libc)
    malloc.keep()
    assert options.keys() == {-1, -3} and min(options.values()) >= 1 << 30

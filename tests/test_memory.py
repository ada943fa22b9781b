"""A command starts itself anew, once, and only where that gives it huge pages."""

import os
import sys
from types import SimpleNamespace

import pytest

from experiments import memory


@pytest.fixture
def started(tmp_path, monkeypatch):
    """What was started, on a kernel that gives huge pages to who asks."""
    calls = []
    monkeypatch.setattr(memory, 'KERNEL', tmp_path / 'enabled')
    memory.KERNEL.write_text('always [madvise] never')
    monkeypatch.setattr(os, 'execve', lambda *call: calls.append(call))
    monkeypatch.delenv('GLIBC_TUNABLES', raising=False)
    return calls


def test_the_same_command_is_started_with_the_setting(started):
    memory.use_huge_pages()
    ((program, command, environment),) = started
    assert (program, command) == (sys.executable, sys.orig_argv)
    assert environment == os.environ | {'GLIBC_TUNABLES': 'glibc.malloc.hugetlb=1'}


def test_other_settings_are_kept(started, monkeypatch):
    monkeypatch.setenv('GLIBC_TUNABLES', 'glibc.malloc.check=3')
    memory.use_huge_pages()
    assert (
        started[0][2]['GLIBC_TUNABLES'] == 'glibc.malloc.check=3:glibc.malloc.hugetlb=1'
    )


@pytest.mark.parametrize(
    'setting', ['glibc.malloc.hugetlb=1', 'glibc.malloc.hugetlb=0']
)
def test_a_process_that_has_the_setting_goes_on(started, monkeypatch, setting):
    monkeypatch.setenv('GLIBC_TUNABLES', setting)
    memory.use_huge_pages()
    assert not started


@pytest.mark.parametrize(
    'kernel', [None, '[always] madvise never', 'always madvise [never]']
)
def test_nothing_is_started_where_it_would_change_nothing(started, kernel):
    memory.KERNEL.unlink() if kernel is None else memory.KERNEL.write_text(kernel)
    memory.use_huge_pages()
    assert not started


def test_what_is_freed_is_kept_or_nothing_is_done(monkeypatch):
    options = []
    libc = SimpleNamespace(mallopt=lambda *option: options.append(option))
    monkeypatch.setattr(memory.ctypes, 'CDLL', lambda name: libc)
    memory.keep()
    assert dict(options).keys() == {-1, -3} and min(dict(options).values()) >= 1 << 30
    monkeypatch.setattr(memory.ctypes, 'CDLL', lambda name: SimpleNamespace())
    memory.keep()

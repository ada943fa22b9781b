"""The cache's folder: where it is, and what is said when it cannot be."""

import errno
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from experiments.errors import UserError
from experiments.runtime import cache, compilation, jax_cache

VARIABLES = ('FLAXFORMER_LITE_CACHE', 'XDG_CACHE_HOME', 'HOME')


def place(monkeypatch, **environment):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, str(value))


def test_the_first_place_that_is_named_counts(monkeypatch, tmp_path):
    places = [tmp_path / name for name in 'abc']
    named = dict(zip(VARIABLES, places, strict=True))
    expected = [
        places[0],
        places[1] / 'flaxformer_lite',
        places[2] / '.cache' / 'flaxformer_lite',
    ]
    for first, path in enumerate(expected):
        place(monkeypatch, **{name: named[name] for name in VARIABLES[first:]})
        assert cache.folder() == path and path.is_dir()


def no_home(monkeypatch, tmp_path):
    def unknown():
        raise RuntimeError('Could not determine home directory.')

    place(monkeypatch)
    monkeypatch.setattr(Path, 'home', unknown)


def a_file(monkeypatch, tmp_path):
    (tmp_path / 'file').touch()
    place(monkeypatch, FLAXFORMER_LITE_CACHE=tmp_path / 'file' / 'cache')


def a_full_or_read_only_disk(monkeypatch, tmp_path):
    def refuse(self, *_, **__):
        raise OSError(errno.EROFS, 'Read-only file system', str(self))

    place(monkeypatch, HOME=tmp_path)
    monkeypatch.setattr(Path, 'mkdir', refuse)


def no_permission(monkeypatch, tmp_path):
    # As the system refuses it; the owner of the tests may be allowed everything.
    place(monkeypatch, FLAXFORMER_LITE_CACHE=tmp_path)
    monkeypatch.setattr(os, 'access', lambda path, mode: path != tmp_path)


@pytest.mark.parametrize(
    'unusable', [no_home, a_file, a_full_or_read_only_disk, no_permission]
)
def test_a_cache_that_cannot_be_is_one_line_that_names_the_mend(
    unusable, monkeypatch, tmp_path, capsys
):
    with monkeypatch.context() as patch:
        unusable(patch, tmp_path)
        with pytest.raises(UserError, match='with FLAXFORMER_LITE_CACHE$'):
            cache.folder()
        compilation.use_cache()  # what a translation can do without
    said = capsys.readouterr().err
    assert said.startswith('warning: compiled programs are not kept')
    assert said.count('\n') == 1


PROGRAM = """
import jax, numpy
from experiments.runtime import compilation
compilation.use_cache()
print(jax.jit(lambda x: 2.5 * x + 1)(numpy.ones(3, 'float32')))
"""


def compiled(cache):
    environment = os.environ | {'FLAXFORMER_LITE_CACHE': str(cache)}
    command = [sys.executable, '-c', PROGRAM]
    done = subprocess.run(
        command, env=environment, capture_output=True, encoding='utf-8', check=True
    )
    assert done.stdout == '[3.5 3.5 3.5]\n'
    return done.stderr


def test_a_damaged_program_is_named_once_and_made_again(tmp_path):
    assert compiled(tmp_path) == ''
    (program,) = (tmp_path / 'programs').glob('jit__lambda*-cache')
    content = program.read_bytes()
    program.write_bytes(content[:-5])  # as a kill leaves it
    said = compiled(tmp_path)
    assert 'is damaged (jit__lambda): it is made again' in said
    assert said.count('\n') == 1
    assert len(program.read_bytes()) > len(content) - 5
    assert compiled(tmp_path) == ''


def test_a_program_that_cannot_be_read_is_not_removed(tmp_path, monkeypatch, capsys):
    folder = tmp_path / 'programs'
    folder.mkdir()
    (folder / 'jit_f-0-cache').touch()
    set_to = {}
    monkeypatch.setattr(jax_cache.jax.config, 'update', set_to.__setitem__)
    monkeypatch.setattr(warnings, 'showwarning', lambda *_, **__: None)
    jax_cache.keep(folder)
    said = "Error reading persistent compilation cache entry for 'jit_f': "
    warnings.showwarning(said + 'PermissionError: …', UserWarning, 'file', 1)
    assert list(folder.iterdir()) and capsys.readouterr().err == ''
    warnings.showwarning(said + 'error: Error -3', UserWarning, 'file', 1)
    assert not list(folder.iterdir()) and 'damaged (jit_f)' in capsys.readouterr().err

"""Tests of compilation: its options, its mesh and its cache."""

import errno
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_runs

from experiments.errors import UserError
from experiments.runtime import compilation, mesh

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
        assert compilation.use_cache() == path and path.is_dir()


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
    unusable, monkeypatch, tmp_path
):
    with monkeypatch.context() as patch:
        unusable(patch, tmp_path)
        with pytest.raises(
            UserError, match='set FLAXFORMER_LITE_CACHE to a writable folder$'
        ):
            compilation.use_cache()


@pytest.mark.parametrize('mode', [0o770, 0o702])
def test_a_cache_that_others_may_write_to_is_refused(mode, monkeypatch, tmp_path):
    cache = tmp_path / 'cache'
    cache.mkdir()
    cache.chmod(mode)
    (tmp_path / 'link').symlink_to(cache)
    place(monkeypatch, FLAXFORMER_LITE_CACHE=tmp_path / 'link')
    message = f'{cache} can be written to by others .mode {mode:o}.* FLAXFORMER_LITE_'
    with pytest.raises(UserError, match=message):
        compilation.use_cache()
    assert not list(cache.iterdir())


def test_a_cache_of_another_user_is_refused(monkeypatch, tmp_path):
    if not tmp_path.stat().st_uid:  # root's own are everybody's to use
        os.chown(tmp_path, 4321, -1)
    owner = tmp_path.stat().st_uid
    place(monkeypatch, FLAXFORMER_LITE_CACHE=tmp_path)
    monkeypatch.setattr(os, 'geteuid', lambda: owner + 1)
    with pytest.raises(UserError, match=f'belongs to another user .number {owner}'):
        compilation.use_cache()
    assert not list(tmp_path.iterdir())


def test_a_cache_in_a_folder_of_everybodys_is_made_for_its_owner_alone(
    monkeypatch, tmp_path
):
    tmp_path.chmod(0o1777)  # as /tmp is
    place(monkeypatch, FLAXFORMER_LITE_CACHE=tmp_path / 'cache')
    before = os.umask(0)
    try:
        assert compilation.use_cache().stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)


PROGRAM = """
import jax, numpy
from experiments.runtime import compilation
compilation.use_cache()
x = jax.numpy.ones(3)
print(compilation.compile_program(jax.jit(lambda x: 2.5 * x + 1), x)(x))
"""


def compiled(cache):
    environment = os.environ | {'FLAXFORMER_LITE_CACHE': str(cache)}
    command = [sys.executable, '-c', PROGRAM]
    done = subprocess.run(
        command, env=environment, capture_output=True, encoding='utf-8', check=True
    )
    assert done.stdout == '[3.5 3.5 3.5]\n'
    return done.stderr


def test_a_program_is_compiled_once_for_each_shape_whichever_thread_asks():
    traced = []

    def double(x):
        traced.append(x.shape)
        return 2 * x

    program = compilation.Program(jax.jit(double))
    sizes = [6, 7, 6, 7] * 2
    with ThreadPoolExecutor(8) as threads:
        found = threads.map(lambda size: program(jnp.ones(size)), sizes)
        assert [x.sum() for x in found] == [2 * size for size in sizes]
    assert sorted(traced) == [(6,), (7,)]


def test_what_is_divided_among_devices_is_traced_with_their_mesh_in_context():
    contexts = []

    def double(x):
        contexts.append(jax.sharding.get_abstract_mesh())
        return 2 * x

    for x in (jax.device_put(np.ones(8), mesh.make_mesh().rows()), jnp.ones(8)):
        compilation.compile_program(jax.jit(double), x)
    assert contexts[0] == mesh.make_mesh().mesh.abstract_mesh and contexts[1].empty


VARIANT = """
import jax
from flaxformer_lite.feed_forward.base import FeedForward

class Scaled(FeedForward):
    def activation(self, h_BTF):
        return FACTOR * jax.nn.relu(h_BTF)
"""


@pytest.mark.slow
def test_a_variant_of_ones_own_that_is_edited_runs_as_edited(tmp_path):
    (tmp_path / 'own').mkdir()
    text = small_runs.source(small_runs.write_text(tmp_path, val=4))
    fields = small_runs.FIELDS | {
        'data': text,
        'model.feed_forward': 'own.scaled.Scaled',
    }
    fields |= {'train.steps': 2, 'evaluation.sets': 'val'}
    command = [sys.executable, '-m', 'experiments.run', '--config=wmt_small']
    command += small_runs.flags(fields)
    path = f'{Path(__file__).parents[3]}{os.pathsep}{os.environ.get("PYTHONPATH", "")}'
    environment = os.environ | {'FLAXFORMER_LITE_CACHE': str(tmp_path / 'cache')}
    losses = []
    for number, factor in enumerate(('1.0', '1.0', '0.0')):
        (tmp_path / 'own' / 'scaled.py').write_text(VARIANT.replace('FACTOR', factor))
        subprocess.run(
            [*command, f'--workdir={number}'],
            cwd=tmp_path,
            env=environment | {'PYTHONPATH': path},
            check=True,
        )
        result = json.loads((tmp_path / str(number) / 'result.json').read_text())
        losses.append(result['evaluations']['val']['loss'])
    assert losses[0] == losses[1] != losses[2]


def test_several_gpus_compute_while_they_send(monkeypatch):
    monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
    options = compilation._options(once=False)
    assert options == compilation._GPU_OPTIONS | compilation._GPUS_OPTIONS
    program = jax.jit(lambda x: x + 1).lower(1.0)
    program.compile(compiler_options=options)
    with pytest.raises(jax.errors.JaxRuntimeError, match='No such compile option'):
        program.compile(compiler_options={'xla_gpu_no_such_flag': True})
    root = Path(__file__).parents[3]
    guide = (root / 'docs/how_to/many_devices.md').read_text('utf-8')
    (flag,) = re.findall(r'XLA_FLAGS=(--xla_gpu_\w+=false)', guide)
    monkeypatch.setenv('XLA_FLAGS', flag)
    assert compilation._options(once=False) == compilation._GPU_OPTIONS
    monkeypatch.delenv('XLA_FLAGS')
    monkeypatch.setattr(jax, 'device_count', lambda: 1)
    assert compilation._options(once=False) == compilation._GPU_OPTIONS

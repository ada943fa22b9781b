"""Tests of compilation: its options, its mesh and its caches."""

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pages
import pytest

import experiments.describe
import experiments.sweeps.workers
import experiments.training.loop  # noqa: F401
from experiments.errors import UserError
from experiments.runtime import compilation, mesh

VARIABLES = ('FLAXFORMER_LITE_CACHE', 'XDG_CACHE_HOME', 'HOME')


def set_variables(monkeypatch, **environment):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, str(value))


def test_first_variable_that_is_set_decides_the_cache_folder(monkeypatch, tmp_path):
    values = {name: tmp_path / name for name in VARIABLES}
    expected = [
        tmp_path / 'FLAXFORMER_LITE_CACHE',
        tmp_path / 'XDG_CACHE_HOME' / 'flaxformer_lite',
        tmp_path / 'HOME' / '.cache' / 'flaxformer_lite',
    ]
    for first, path in enumerate(expected):
        set_variables(monkeypatch, **{name: values[name] for name in VARIABLES[first:]})
        assert compilation.use_cache() == path and path.is_dir()


def in_a_file(monkeypatch, tmp_path):
    (tmp_path / 'file').touch()
    set_variables(monkeypatch, FLAXFORMER_LITE_CACHE=tmp_path / 'file' / 'cache')


def without_permission(monkeypatch, tmp_path):
    # Root may run the tests, and has all permissions.
    set_variables(monkeypatch, FLAXFORMER_LITE_CACHE=tmp_path)
    monkeypatch.setattr(os, 'access', lambda path, mode: path != tmp_path)


@pytest.mark.parametrize('make_unusable', [in_a_file, without_permission])
def test_unusable_cache_folder_is_a_user_error(make_unusable, monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        make_unusable(patch, tmp_path)
        with pytest.raises(UserError, match='set FLAXFORMER_LITE_CACHE to a writable'):
            compilation.use_cache()


@pytest.mark.parametrize('mode', [0o770, 0o702])
def test_cache_folder_that_others_can_write_to_is_rejected(mode, monkeypatch, tmp_path):
    cache = tmp_path / 'cache'
    cache.mkdir()
    cache.chmod(mode)
    (tmp_path / 'link').symlink_to(cache)
    set_variables(monkeypatch, FLAXFORMER_LITE_CACHE=tmp_path / 'link')
    message = f'{cache} can be written to by others .mode {mode:o}.* FLAXFORMER_LITE_'
    with pytest.raises(UserError, match=message):
        compilation.use_cache()
    assert not list(cache.iterdir())


def test_cache_folder_of_another_user_is_rejected(monkeypatch, tmp_path):
    if not tmp_path.stat().st_uid:  # folders of root are accepted
        os.chown(tmp_path, 4321, -1)
    owner = tmp_path.stat().st_uid
    set_variables(monkeypatch, FLAXFORMER_LITE_CACHE=tmp_path)
    monkeypatch.setattr(os, 'geteuid', lambda: owner + 1)
    with pytest.raises(UserError, match=f'belongs to another user .number {owner}'):
        compilation.use_cache()
    assert not list(tmp_path.iterdir())


def test_new_cache_folder_belongs_to_its_owner_only(monkeypatch, tmp_path):
    tmp_path.chmod(0o1777)  # as /tmp
    set_variables(monkeypatch, FLAXFORMER_LITE_CACHE=tmp_path / 'cache')
    before = os.umask(0)
    try:
        assert compilation.use_cache().stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)


def test_program_is_compiled_once_for_each_shape_in_all_threads():
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


def test_program_cache_keeps_the_latest_programs():
    calls = []

    def make(name):
        calls.append(name)
        return [name]

    cache = compilation.ProgramCache(size=2)
    assert cache.get(make, 'a') is cache.get(make, 'a')
    for name in 'bcab':
        assert cache.get(make, name) == [name]
    assert ''.join(calls) == 'abcab'
    assert compilation.ProgramCache().get(make, 'b') is not cache.get(make, 'b')


def test_program_cache_shares_the_first_of_equal_objects():
    cache, first, equal = compilation.ProgramCache(), (1, 2), tuple([1, 2])
    assert first is not equal
    assert cache.shared(first) is first
    assert cache.shared(equal) is first


# Their values are text, numbers, classes, functions of Optax, entry points or meshes.
CACHES = {
    'experiments.config.schema.fields',
    'experiments.optimizers.optax_specs.makers',
    'experiments.sweeps.analysis._normal_points',
    'experiments.reports.page._library',
    'experiments.runs.reading._warn_once',
    'experiments.runtime.mesh._make',
    'experiments.sweeps.planning._flops_per_step',
    'flaxformer_checkpoints.loading.arrays._pattern',
    'flaxformer_lite.config.spec.entry_points',
    'flaxformer_lite.validation._limited',
}
PACKAGES = (
    *('experiments', 'flaxformer_checkpoints', 'flaxformer_explain'),
    *('flaxformer_lite', 'parallel_grammar'),
)


def test_module_caches_hold_neither_models_nor_programs():
    found = set()
    for name, module in list(sys.modules.items()):
        if name.split('.')[0] in PACKAGES:
            for attribute, value in vars(module).items():
                if hasattr(value, 'cache_info') and value.__module__ == name:
                    found.add(f'{name}.{attribute}')
    assert found <= CACHES  # other tests decide which modules are imported


def test_sharded_arguments_are_traced_with_their_mesh_in_context():
    contexts = []

    def double(x):
        contexts.append(jax.sharding.get_abstract_mesh())
        return 2 * x

    for x in (jax.device_put(np.ones(8), mesh.make_mesh().rows()), jnp.ones(8)):
        compilation.compile_program(jax.jit(double), x)
    assert contexts[0] == mesh.make_mesh().mesh.abstract_mesh and contexts[1].empty


def test_several_gpus_overlap_computation_and_communication(monkeypatch):
    monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
    options = compilation._options(once=False)
    assert options == compilation._GPU_OPTIONS | compilation._GPUS_OPTIONS
    program = jax.jit(lambda x: x + 1).lower(1.0)
    program.compile(compiler_options=options)
    with pytest.raises(jax.errors.JaxRuntimeError, match='No such compile option'):
        program.compile(compiler_options={'xla_gpu_no_such_flag': True})
    guide = (pages.ROOT / 'docs/how_to/many_devices.md').read_text('utf-8')
    (flag,) = re.findall(r'XLA_FLAGS=(--xla_gpu_\w+=false)', guide)
    monkeypatch.setenv('XLA_FLAGS', flag)
    assert compilation._options(once=False) == compilation._GPU_OPTIONS
    monkeypatch.delenv('XLA_FLAGS')
    monkeypatch.setattr(jax, 'device_count', lambda: 1)
    assert compilation._options(once=False) == compilation._GPU_OPTIONS

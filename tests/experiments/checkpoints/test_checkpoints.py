"""Tests that checkpoints are restored exactly, or the previous one after damage."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from experiments import storage
from experiments.checkpoints import checkpoints, digest
from experiments.checkpoints.checkpoints import Checkpoints, RemovedCheckpoint, average
from experiments.errors import UserError


class State(NamedTuple):
    step: jax.Array
    params: dict
    opt_state: tuple
    key: jax.Array


def make_state(step, width=8):
    """Returns a state with one leaf of each kind that identifies its step.

    Copies NumPy arrays, so that nothing is compiled.
    """
    kernel = np.random.default_rng(step).normal(size=(width, 64)).astype(np.float32)
    params = {'dense': {'kernel': kernel, 'bias': np.full(64, step, jnp.bfloat16)}}
    zeros = jax.tree.map(np.zeros_like, params)
    adam = optax.ScaleByAdamState(np.zeros((), np.int32), zeros, zeros)
    key = jax.random.wrap_key_data(np.full(4, step, np.uint32), impl='unsafe_rbg')
    state = jax.tree.map(
        jnp.asarray, (np.int32(step), params, (adam, optax.EmptyState()))
    )
    return State(*state, key)


def shapes_of(make):
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here),
        jax.eval_shape(make),
    )


ABSTRACT = shapes_of(lambda: make_state(0))
PARAMS = {'params': ABSTRACT.params}


def assert_equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    assert digest.array_kinds(a) == digest.array_kinds(b)
    for leaf, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf, other = jax.random.key_data(leaf), jax.random.key_data(other)
        np.testing.assert_array_equal(np.asarray(leaf), np.asarray(other))


@pytest.fixture
def warnings():
    return []


def save(path, *steps, **options):
    checkpoints = Checkpoints(path, **{'keep': 10} | options)
    for step in steps:
        checkpoints.save(step, make_state(step), {'progress': {'step': step}})
    checkpoints.close()


def restore(path, warn=print):
    with contextlib.closing(Checkpoints(path, keep=10)) as checkpoints:
        return checkpoints.restore(ABSTRACT, warn)


def mean_of(path, steps, abstract=PARAMS, warn=print):
    return Checkpoints(path).average(steps, abstract, warn)


def steps_of(path):
    return Checkpoints(path).steps()


def test_latest_checkpoint_is_restored_exactly(tmp_path):
    assert restore(tmp_path / 'new') is None
    facts = {'seconds': 0.1 + 0.2, 'none': None, 'list': [1, 'ä'], 'large': 2**60}
    facts |= {'window': {'a': float('inf'), 'b': float('nan')}}
    with contextlib.closing(Checkpoints(tmp_path, keep=2)) as checkpoints:
        for step in (10, 20):
            checkpoints.save(step, make_state(step), facts)
    step, state, metadata = restore(tmp_path)
    assert (step, str(metadata)) == (20, str(facts))
    assert_equal(state, make_state(20))
    # A restored key gives the same random bits.
    assert_equal(jax.random.bits(state.key), jax.random.bits(make_state(20).key))


def test_state_may_be_donated_when_save_returns(tmp_path):
    state = jax.jit(lambda: jnp.arange(1_000_000.0))()
    bump = jax.jit(lambda x: x + 1, donate_argnums=0)
    checkpoints = Checkpoints(tmp_path, keep=5)
    for step in range(1, 4):
        checkpoints.save(step, {'params': state}, {})
        state = bump(bump(state))
    checkpoints.close()
    abstract = {'params': shapes_of(lambda: state)}
    for step in range(1, 4):
        params = mean_of(tmp_path, [step], abstract).variables['params']
        np.testing.assert_array_equal(params, np.arange(1_000_000.0) + 2 * (step - 1))


def test_checkpoint_is_restored_on_other_devices(tmp_path):
    save(tmp_path, 1)
    mesh = jax.make_mesh((4,), ('data',), axis_types=(AxisType.Auto,))
    rows = NamedSharding(mesh, PartitionSpec('data'))
    replicated = ABSTRACT.params['dense']['kernel']
    sharded = jax.ShapeDtypeStruct((8, 64), jnp.float32, sharding=rows)

    def read(path, shape):
        abstract = {'params': {'dense': {'kernel': shape}}}
        return mean_of(path, [1], abstract).variables

    found = read(tmp_path, sharded)
    kernel = found['params']['dense']['kernel']
    assert kernel.sharding == rows
    assert_equal(kernel, make_state(1).params['dense']['kernel'])
    with contextlib.closing(Checkpoints(tmp_path / 'again')) as checkpoints:
        checkpoints.save(1, found, {})
    again = read(tmp_path / 'again', replicated)['params']['dense']['kernel']
    assert len(again.devices()) == 1
    assert_equal(again, kernel)


def test_state_of_another_model_is_rejected(tmp_path):
    save(tmp_path, 1)
    wide = jax.eval_shape(lambda: make_state(0, width=9))
    half = ABSTRACT._replace(step=jax.ShapeDtypeStruct((), jnp.int16))
    deeper = ABSTRACT._replace(params=ABSTRACT.params | {'more': ABSTRACT.step})
    with contextlib.closing(Checkpoints(tmp_path)) as checkpoints:
        for abstract, message in (
            (wide, r'params/dense/kernel is float32\[8, 64\], not float32\[9, 64\]'),
            (half, r'step is int32\[\], not int16\[\]'),
            (deeper, r'params/more is missing, not'),
        ):
            with pytest.raises(UserError, match=message):
                checkpoints.restore(abstract)
    assert steps_of(tmp_path) == [1]


def test_last_and_best_checkpoints_remain(tmp_path):
    scores = {}
    options = dict(keep=2, keep_best=2, scores=scores)
    with contextlib.closing(Checkpoints(tmp_path, **options)) as checkpoints:
        for step, score in enumerate([0.5, None, 0.9, 0.1, None, 0.8, None], 1):
            checkpoints.save(step, make_state(step), {})
            if score is not None:
                scores[step] = score
    assert steps_of(tmp_path) == [3, 6, 7]
    # A resumed process keeps the same ones.
    scores |= {8: 0.85, 9: 0.0}
    save(tmp_path, 8, 9, **options)
    assert steps_of(tmp_path) == [3, 8, 9]
    reader = Checkpoints(tmp_path, scores=scores)
    assert reader.best_steps(2) == [3, 8] and reader.best_steps(10) == [3, 8, 9]


def test_checkpoint_of_a_stop_is_not_scheduled(tmp_path):
    options = dict(keep=2, is_due=lambda step: step % 10 == 0)
    save(tmp_path, 10, 20, 25, **options)
    reader = Checkpoints(tmp_path)
    assert reader.steps() == [10, 20, 25] and reader.last_steps(5) == [10, 20]
    save(tmp_path, 30, **options)
    assert reader.steps() == [20, 30] == reader.last_steps(2)
    with contextlib.closing(Checkpoints(tmp_path)) as checkpoints:
        for step in (29, 30):
            with pytest.raises(UserError, match=f'step {step} is not after'):
                checkpoints.save(step, make_state(step), {})


# Damage.


def flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0x10
    file.write_bytes(data)


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.ci
@pytest.mark.parametrize('damage', [flip, cut, Path.unlink])
def test_damage_to_any_file_never_changes_restored_bits(tmp_path, damage):
    save(tmp_path / 'whole', 10, 20)
    detected = set()
    files = (x for x in (tmp_path / 'whole' / '20').rglob('*') if x.is_file())
    for i, file in enumerate(sorted(files)):
        warnings = []
        path = tmp_path / str(i)
        shutil.copytree(tmp_path / 'whole', path)
        damage(path / file.relative_to(tmp_path / 'whole'))
        step, state, metadata = restore(path, warnings.append)
        assert_equal(state, make_state(step))
        assert metadata == {'progress': {'step': step}}
        if step == 10:
            assert 'step 20 is damaged' in warnings[0] and len(warnings) == 1
            assert steps_of(path) == [10]
            detected.add(file.name)
        else:
            assert warnings == []
    assert {'metadata', 'manifest.ocdbt', '_METADATA'} <= detected


def test_array_with_a_damaged_name_is_missing(tmp_path, warnings):
    save(tmp_path, 1, 2)
    names = tmp_path / '2' / 'state' / '_METADATA'
    names.write_bytes(names.read_bytes().replace(b'bias', b'bjas'))
    with contextlib.closing(Checkpoints(tmp_path)) as checkpoints:
        assert checkpoints.restore(PARAMS, warnings.append).step == 1
    (warning,) = warnings
    assert 'params/dense/bias is missing' in warning


def test_damaged_checkpoints_are_renamed_and_their_steps_saved_again(
    tmp_path, warnings
):
    save(tmp_path, 10, 20)
    (tmp_path / '30').mkdir()
    shutil.rmtree(tmp_path / '20' / 'state')
    with contextlib.closing(Checkpoints(tmp_path, keep=10)) as checkpoints:
        assert checkpoints.restore(ABSTRACT, warnings.append).step == 10
        assert len(warnings) == 2
        for step in (20, 30):
            checkpoints.save(step, make_state(step), {})
    assert restore(tmp_path).step == 30
    names = ['10', '20', '30', 'damaged-20', 'damaged-30']
    assert sorted(p.name for p in tmp_path.iterdir()) == names
    assert not (tmp_path / 'damaged-20' / 'state').exists()


def test_restore_fails_if_all_checkpoints_are_damaged(tmp_path, warnings):
    save(tmp_path, 10)
    shutil.rmtree(tmp_path / '10' / 'state')
    with pytest.raises(UserError, match='all checkpoints in .* are damaged'):
        restore(tmp_path, warnings.append)
    assert (tmp_path / '10').exists() and len(warnings) == 1


# A checkpoint that can't be read now isn't damaged.


def deny_permission(path):
    path.chmod(0)


def link_to_itself(path):
    path.unlink()
    path.symlink_to(path.name)


@pytest.mark.skipif(os.name != 'posix', reason='needs the permissions of POSIX')
@pytest.mark.parametrize(
    ('pattern', 'change'),
    [
        ('metadata/metadata', deny_permission),
        ('state/ocdbt.process_0/d/*', deny_permission),
        ('state/ocdbt.process_0/d/*', link_to_itself),
        ('state', deny_permission),
        ('', deny_permission),
    ],
)
def test_unreadable_checkpoint_is_an_error_and_stays(nobody, pattern, change, warnings):
    save(nobody, 10, 20)
    newest = nobody / '20'
    for file in list(newest.glob(pattern)) if pattern else [newest]:
        change(file)
    message = 'cannot read .*20.*: (Permission denied|Too many levels of symbolic)'
    with pytest.raises(UserError, match=message):
        restore(nobody, warnings.append)
    with pytest.raises(UserError, match=message):
        mean_of(nobody, [10, 20], warn=warnings.append)
    assert steps_of(nobody) == [10, 20] and warnings == []


OUT_OF_MEMORY = jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Out of memory')


@pytest.mark.parametrize(
    ('owner', 'name', 'error', 'reason'),
    [
        (checkpoints, '_restore_arrays', OSError(5, 'Input/output error'), 'Input/ou'),
        (checkpoints, '_restore_arrays', MemoryError(), 'MemoryError'),
        (checkpoints, '_restore_arrays', OUT_OF_MEMORY, 'RESOURCE_EXHAUSTED: Out'),
        (checkpoints, '_restore_arrays', ValueError('UNKNOWN: EIO'), 'UNKNOWN: EIO'),
        (checkpoints, '_read_content', OSError(5, 'Input/output error'), 'Input/ou'),
        (digest, 'array_facts', OUT_OF_MEMORY, 'RESOURCE_EXHAUSTED: Out'),
    ],
)
def test_failed_disk_or_memory_is_an_error_and_the_checkpoint_stays(
    tmp_path, monkeypatch, warnings, owner, name, error, reason
):
    def fail(error):
        def read(*_, **__):
            raise error

        return read

    save(tmp_path, 10, 20)
    wrapped = Exception('Orbax: cannot read')
    wrapped.__cause__ = error
    for raised in (error, wrapped) if owner is checkpoints else (error,):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail(raised))
            with pytest.raises(UserError, match=f'cannot read .*20: .*{reason}'):
                restore(tmp_path, warnings.append)
    assert steps_of(tmp_path) == [10, 20] and warnings == []
    assert restore(tmp_path).step == 20


# Averages.


def test_average_excludes_damaged_checkpoints(tmp_path, warnings):
    save(tmp_path, 1, 2, 3, 4, 5)
    flip(tmp_path / '2' / 'metadata' / 'metadata')
    shutil.rmtree(tmp_path / '3' / 'state')
    mean = mean_of(tmp_path, [1, 2, 3, 4, 5], warn=warnings.append)
    assert (mean.steps, mean.left_out) == ([1, 4, 5], [2, 3])
    dense = mean.variables['params']['dense']
    kernels = [np.float64(make_state(i).params['dense']['kernel']) for i in (1, 4, 5)]
    np.testing.assert_array_equal(dense['kernel'], np.float32(np.mean(kernels, axis=0)))
    assert dense['bias'].dtype == jnp.bfloat16
    assert 'step 2 is damaged and skipped' in warnings[0] and len(warnings) == 2
    with pytest.raises(UserError, match='all selected checkpoints in'):
        mean_of(tmp_path, [2, 3])
    with pytest.raises(RemovedCheckpoint):
        mean_of(tmp_path, [1, 6])


def test_average_equals_float64_mean_on_one_device_and_on_a_mesh():
    mesh = jax.make_mesh((2, 2), ('a', 'b'), axis_types=(AxisType.Auto,) * 2)
    shardings = {
        'kernel': NamedSharding(mesh, PartitionSpec('b', 'a')),
        'bias': NamedSharding(mesh, PartitionSpec('a')),
    }
    rng = np.random.default_rng(0)
    trees = [
        {
            'kernel': rng.normal(size=(8, 12)).astype(np.float32),
            'bias': (1000 * rng.normal(size=12)).astype(np.float32),
        }
        for _ in range(7)
    ]
    found = average(jax.device_put(tree) for tree in trees)
    on_mesh = average(jax.device_put(tree, shardings) for tree in trees)
    for name in found:
        expected = np.mean([np.float64(tree[name]) for tree in trees], axis=0)
        np.testing.assert_array_equal(found[name], np.float32(expected))
        np.testing.assert_array_equal(on_mesh[name], np.float32(expected))
        assert on_mesh[name].sharding == shardings[name]


def test_reading_writes_nothing(tmp_path):
    save(tmp_path, 1, 2)
    (tmp_path / '3.orbax-checkpoint-tmp').mkdir()
    before = sorted(tmp_path.rglob('*'))
    checkpoints = Checkpoints(tmp_path)
    checkpoints.average(checkpoints.steps(), PARAMS)
    checkpoints.close()
    assert sorted(tmp_path.rglob('*')) == before
    assert steps_of(tmp_path / 'missing') == []
    assert not (tmp_path / 'missing').exists()


# Kills, power cuts and full disks.


def run(code, *arguments, before=''):
    package = 'tests.experiments.checkpoints'
    program = f'{before}\nfrom {package}.test_checkpoints import *\n{code}'
    return subprocess.Popen(
        [sys.executable, '-c', program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


SAVER = """
scores = {}
checkpoints = Checkpoints(Path(sys.argv[1]), keep=2, keep_best=1, scores=scores)
restored = checkpoints.restore(ABSTRACT)
step = restored.step if restored else 0
print(step, flush=True)
while True:
    step += 1
    checkpoints.save(step, make_state(step), {'progress': {'step': step}})
    scores[step] = -step
    checkpoints.wait()
    print(step, flush=True)
"""


def kill_while_saving(path):
    """Kills a process while it saves; returns the last step that it reported."""
    with run(SAVER, str(path)) as process:
        lines = [process.stdout.readline(), process.stdout.readline()]
        time.sleep(random.uniform(0, 0.3))
        process.send_signal(signal.SIGKILL)
        return int([*lines, *process.stdout.readlines()][-1])


@pytest.mark.slow
@pytest.mark.skipif(os.name != 'posix', reason='needs the signals of POSIX')
def test_kill_at_any_time_leaves_undamaged_checkpoints(tmp_path, warnings):
    for _ in range(12):
        last = kill_while_saving(tmp_path)
        step, state, metadata = restore(tmp_path, warnings.append)
        assert step in (last, last + 1)
        assert_equal(state, make_state(step))
        assert metadata == {'progress': {'step': step}}
    assert warnings == []
    save(tmp_path, last + 2)
    assert {p.name for p in tmp_path.iterdir()} == set(map(str, steps_of(tmp_path)))


def test_checkpoint_is_flushed_to_disk_before_it_is_renamed(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(storage, 'sync', synced.append)
    save(tmp_path, 1, 2)
    assert [(path.parent, path.name.split('.')[0]) for path in synced] == [
        (tmp_path, '1'),
        (tmp_path, '2'),
    ]


# Commands call this before their other imports.
SILENCE = 'from experiments.command_line import command; command.silence_orbax()'
# Limits the size of files. As on a full disk, a write stops before its end.
FULL = """
import resource
sys.dont_write_bytecode = True  # a cut file would break later imports
checkpoints = Checkpoints(Path(sys.argv[1]), keep=1)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    params = jax.random.normal(jax.random.key(0), (1_000_000,))
    checkpoints.save(2, {'params': params}, {})
    checkpoints.wait()
except UserError as error:
    print(error)
checkpoints.close()
"""


@pytest.mark.ci
@pytest.mark.skipif(os.name != 'posix', reason='needs the limits of POSIX')
@pytest.mark.parametrize(
    'limit',
    [
        500_000,
        pytest.param(0, marks=pytest.mark.slow),
        pytest.param(200, marks=pytest.mark.slow),
    ],
)
def test_full_disk_keeps_the_last_checkpoint(tmp_path, limit):
    save(tmp_path, 1)
    out, err = run(FULL, str(tmp_path), str(limit), before=SILENCE).communicate()
    assert err == ''
    assert out.startswith(f'cannot write a checkpoint to {tmp_path}: ')
    assert out.count('\n') == 1 and 'File too large' in out
    assert restore(tmp_path).step == 1
    save(tmp_path, 3)
    assert sorted(p.name for p in tmp_path.iterdir()) == ['1', '3']

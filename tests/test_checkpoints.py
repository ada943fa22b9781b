"""Checkpoints come back as they were; after a kill or damage, the one before."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

from experiments.checkpoints import averaging, hold, manifest, state_files
from experiments.checkpoints.checkpoints import Checkpoints
from experiments.errors import UserError
from experiments.runs import trained_run
from experiments.runtime import malloc, memory


class State(NamedTuple):
    step: jax.Array
    params: dict
    opt_state: tuple
    key: jax.Array


def make_state(step, width=8):
    """A state with a leaf of each kind, that tells which step it is of."""
    kernel = np.random.default_rng(step).normal(size=(width, 64)).astype(np.float32)
    params = {
        'dense': {
            'kernel': jnp.asarray(kernel),
            'bias': jnp.full((64,), step, jnp.bfloat16),
        }
    }
    return State(
        jnp.int32(step),
        params,
        optax.adam(1e-3).init(params),
        jax.random.key(step, impl='unsafe_rbg'),
    )


ABSTRACT = jax.eval_shape(lambda: make_state(0))
PARAMS = {'params': ABSTRACT.params}


def assert_equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    assert manifest.kinds(a) == manifest.kinds(b)
    for leaf, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf, other = jax.random.key_data(leaf), jax.random.key_data(other)
        np.testing.assert_array_equal(np.asarray(leaf), np.asarray(other))


@pytest.fixture
def warnings():
    return []


def save(path, *steps, scores=None, **options):
    checkpoints = Checkpoints(path, **{'keep': 10} | options)
    for i, step in enumerate(steps):
        score = scores[i] if scores else None
        checkpoints.save(step, make_state(step), {'position': {'step': step}}, score)
    checkpoints.close()


def read(checkpoints, step, abstract):
    """The parameters that were saved at a step."""
    return checkpoints.average([step], {'params': abstract}).variables['params']


def restore(path, warn=print):
    checkpoints = Checkpoints(path, keep=10)
    try:
        return checkpoints.restore(ABSTRACT, warn)
    finally:
        checkpoints.close()


def test_the_latest_comes_back_as_it_was_with_all_that_belongs_to_it(tmp_path):
    save(tmp_path, 10, 20)
    step, state, metadata = restore(tmp_path)
    assert (step, metadata) == (20, {'position': {'step': 20}})
    assert_equal(state, make_state(20))
    # The keys go on as those saved would have.
    assert_equal(jax.random.bits(state.key), jax.random.bits(make_state(20).key))


def test_there_is_nothing_to_restore_at_first(tmp_path):
    assert restore(tmp_path / 'new') is None


def test_a_relative_path_is_as_good(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(Path('here'), 1)
    assert restore(tmp_path / 'here').step == 1


def test_metadata_comes_back_exactly(tmp_path):
    metadata = {'seconds': 0.1 + 0.2, 'none': None, 'list': [1, 'ä'], 'large': 2**60}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, make_state(1), metadata)
    assert checkpoints.restore(ABSTRACT).metadata == metadata
    checkpoints.close()


def test_a_state_may_be_donated_as_soon_as_save_returns(tmp_path):
    state = jax.jit(lambda: jnp.arange(1_000_000.0))()
    bump = jax.jit(lambda x: x + 1, donate_argnums=0)
    checkpoints = Checkpoints(tmp_path, keep=5)
    for step in range(1, 4):
        checkpoints.save(step, {'params': state}, {})
        state = bump(bump(state))
    checkpoints.wait()
    for step in range(1, 4):
        params = read(checkpoints, step, jax.eval_shape(lambda: state))
        np.testing.assert_array_equal(params, np.arange(1_000_000.0) + 2 * (step - 1))
    checkpoints.close()


def test_the_last_and_the_best_stay(tmp_path):
    scores = [0.5, None, 0.9, 0.1, float('nan'), 0.8, None]
    save(tmp_path, 1, 2, 3, 4, 5, 6, 7, scores=scores, keep=2, keep_best=2)
    assert Checkpoints(tmp_path, read_only=True).steps() == [3, 6, 7]
    # Also by a process that did not see those scores.
    save(tmp_path, 8, 9, scores=[0.85, 0.0], keep=2, keep_best=2)
    checkpoints = Checkpoints(tmp_path, read_only=True)
    assert checkpoints.steps() == [3, 8, 9]
    assert checkpoints.best_steps(2) == [3, 8]
    assert checkpoints.best_steps(10) == [3, 8, 9]


def test_of_equal_scores_the_latest_is_the_best(tmp_path):
    save(tmp_path, 1, 2, 3, scores=[1.0, 1.0, 0.5])
    assert Checkpoints(tmp_path, read_only=True).best_steps(2) == [2, 1]


def test_saving_a_step_again_is_refused(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(5, make_state(5), {})
    for step in (4, 5):
        with pytest.raises(UserError, match=f'step {step} is not later'):
            checkpoints.save(step, make_state(step), {})
    checkpoints.close()


def test_a_state_of_another_model_is_refused(tmp_path):
    save(tmp_path, 1)
    checkpoints = Checkpoints(tmp_path)
    wide = jax.eval_shape(lambda: make_state(0, width=9))
    message = r'params/dense/kernel is float32\[8, 64\], not float32\[9, 64\]'
    with pytest.raises(UserError, match=message):
        checkpoints.restore(wide)
    half = ABSTRACT._replace(step=jax.ShapeDtypeStruct((), jnp.int16))
    with pytest.raises(UserError, match=r'step is int32\[\], not int16\[\]'):
        checkpoints.restore(half)
    deeper = ABSTRACT._replace(params=ABSTRACT.params | {'more': ABSTRACT.step})
    with pytest.raises(UserError, match=r'params/more is missing, not'):
        checkpoints.restore(deeper)
    assert checkpoints.steps() == [1]
    checkpoints.close()


def damage_by_flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0x10
    file.write_bytes(data)


def damage_by_cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def damage_by_removal(file):
    file.unlink()


@pytest.mark.parametrize('damage', [damage_by_flip, damage_by_cut, damage_by_removal])
def test_damage_to_any_file_is_noticed_and_the_one_before_used(tmp_path, damage):
    save(tmp_path / 'whole', 10, 20)
    files = [f for f in (tmp_path / 'whole' / '20').rglob('*') if f.is_file()]
    for i, file in enumerate(files):
        warnings = []
        path = tmp_path / str(i)
        shutil.copytree(tmp_path / 'whole', path)
        damage(path / file.relative_to(tmp_path / 'whole'))
        step, state, metadata = restore(path, warnings.append)
        assert_equal(state, make_state(10))
        assert (step, metadata) == (10, {'position': {'step': 10}})
        assert len(warnings) == 1
        assert 'step 20 is damaged' in warnings[0]
        assert Checkpoints(path, read_only=True).steps() == [10]


def test_what_a_damaged_checkpoint_was_is_saved_again(tmp_path, warnings):
    save(tmp_path, 10, 20)
    (tmp_path / '30').mkdir()
    shutil.rmtree(tmp_path / '20' / 'state')
    checkpoints = Checkpoints(tmp_path, keep=10)
    assert checkpoints.restore(ABSTRACT, warnings.append).step == 10
    assert len(warnings) == 2
    for step in (20, 30):
        checkpoints.save(step, make_state(step), {})
    checkpoints.close()
    assert restore(tmp_path).step == 30
    names = ['10', '20', '30', 'damaged-20', 'damaged-30']
    assert sorted(p.name for p in tmp_path.iterdir()) == names
    assert not (tmp_path / 'damaged-20' / 'state').exists()


def test_a_run_is_not_begun_again_in_silence(tmp_path, warnings):
    save(tmp_path, 10)
    shutil.rmtree(tmp_path / '10' / 'state')
    with pytest.raises(UserError, match='all checkpoints in .* are damaged'):
        restore(tmp_path, warnings.append)
    assert (tmp_path / '10').exists()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='nothing else resets the peak')
def test_saving_takes_little_memory_beside_the_state(tmp_path):
    """What an array's digest takes: a 25th of the state; writing it takes nothing."""
    keys = jax.random.split(jax.random.key(0), 25)
    state = {str(i): jax.random.normal(key, (2**20,)) for i, key in enumerate(keys)}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {'0': state['0']}, {})  # what is compiled and loaded for it
    checkpoints.wait()
    malloc.release()
    before = memory.Peak().bytes()
    peak = memory.Peak()
    checkpoints.save(2, state, {})
    checkpoints.wait()
    assert peak.bytes() - before < 0.1 * sum(x.nbytes for x in state.values())
    checkpoints.close()


def test_arrays_that_an_earlier_version_compressed_are_read(tmp_path):
    state = make_state(1)
    writer = ocp.PyTreeCheckpointer(use_ocdbt=True)
    writer.save(tmp_path / 'state', state)
    writer.close()
    files = state_files.StateFiles()
    assert_equal(files.restore(tmp_path / 'state', ABSTRACT), state)
    files.close()


def test_parameters_alone(tmp_path):
    save(tmp_path, 1, 2)
    checkpoints = Checkpoints(tmp_path, read_only=True)
    assert_equal(read(checkpoints, 1, PARAMS['params']), make_state(1).params)
    with pytest.raises(hold.Gone):
        checkpoints.average([3], PARAMS)
    damage_by_cut(tmp_path / '2' / 'record.json')
    with pytest.raises(UserError, match='2: .*record.json is not JSON'):
        checkpoints.average([2], PARAMS)


def test_average_of_checkpoints_is_the_mean_in_float64(tmp_path):
    save(tmp_path, 1, 2, 3, 4)
    mean = Checkpoints(tmp_path, read_only=True).average([2, 3, 4], PARAMS)
    mean = mean.variables['params']
    kernels = [np.float64(make_state(i).params['dense']['kernel']) for i in (2, 3, 4)]
    np.testing.assert_array_equal(
        mean['dense']['kernel'], np.float32(np.mean(kernels, axis=0))
    )
    assert mean['dense']['bias'].dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.float32(mean['dense']['bias']), 3.0)


def test_average_does_not_lose_small_differences():
    trees = [{'x': jnp.float32([1.0])}] * 3000 + [
        {'x': jnp.float32([1.0 + 3e-4])}
    ] * 7000
    assert averaging.average(trees)['x'][0] == np.float32(
        1.0 + 0.7 * np.float64(np.float32(3e-4))
    )


def test_whole_numbers_have_no_average():
    with pytest.raises(ValueError, match='int32'):
        averaging.average([{'count': jnp.int32(1)}])
    with pytest.raises(ValueError, match='nothing'):
        averaging.average([])


def test_reading_changes_nothing(tmp_path):
    save(tmp_path, 1, 2)
    (tmp_path / '.3').mkdir()
    before = sorted(tmp_path.rglob('*'))
    checkpoints = Checkpoints(tmp_path, read_only=True)
    checkpoints.average(checkpoints.steps(), PARAMS)
    checkpoints.close()
    assert sorted(tmp_path.rglob('*')) == before
    assert Checkpoints(tmp_path / 'missing', read_only=True).steps() == []
    assert not (tmp_path / 'missing').exists()


def test_a_disk_without_room_is_told_before_writing(tmp_path, monkeypatch):
    save(tmp_path, 1)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, 'disk_usage', lambda path: usage._replace(free=100))
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(
        UserError, match=r'step 1 stays good.* takes about .* more than are free'
    ):
        checkpoints.save(2, make_state(2), {})
    checkpoints.close()
    assert restore(tmp_path).step == 1


def run(code, *arguments, **options):
    command = [
        sys.executable,
        '-c',
        f'from tests.test_checkpoints import *\n{code}',
        *arguments,
    ]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


# Files may grow to some size only: as with a full disk or a quota, a write fails half
# way.
FULL = """
import resource
checkpoints = Checkpoints(Path(sys.argv[1]), keep=1)
resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, resource.RLIM_INFINITY))
try:
    params = jax.random.normal(jax.random.key(0), (1_000_000,))
    checkpoints.save(2, {'params': params}, {})
    checkpoints.wait()
except UserError as error:
    print(error)
"""


@pytest.mark.skipif(os.name != 'posix', reason='limits as POSIX has them')
def test_a_disk_that_fills_while_writing_leaves_the_last_checkpoint_good(tmp_path):
    save(tmp_path, 1)
    output, noise = run(FULL, str(tmp_path)).communicate()
    assert noise == ''
    assert output.startswith(
        f'cannot write a checkpoint to {tmp_path} (the one of step 1 stays'
    )
    assert 'File too large' in output
    assert len(output.splitlines()) == 1
    assert restore(tmp_path).step == 1


def test_devices_may_be_others_than_those_that_saved(tmp_path):
    save(tmp_path, 1)
    mesh = jax.make_mesh((4,), ('data',), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('data'))
    kernel = make_state(1).params['dense']['kernel']
    divided = {
        'dense': {'kernel': jax.ShapeDtypeStruct((8, 64), jnp.float32, sharding=rows)}
    }

    checkpoints = Checkpoints(tmp_path, keep=10)
    params = read(checkpoints, 1, divided)
    assert params['dense']['kernel'].sharding == rows
    assert_equal(params['dense']['kernel'], kernel)
    checkpoints.save(2, {'params': params}, {})
    checkpoints.wait()
    whole = {'dense': {'kernel': jax.ShapeDtypeStruct((8, 64), jnp.float32)}}
    params = read(checkpoints, 2, whole)
    assert len(params['dense']['kernel'].devices()) == 1
    assert_equal(params['dense']['kernel'], kernel)
    checkpoints.close()


SAVER = """
checkpoints = Checkpoints(Path(sys.argv[1]), keep=2, keep_best=1)
restored = checkpoints.restore(ABSTRACT)
step = restored.step if restored else 0
print(step, flush=True)
while True:
    step += 1
    checkpoints.save(step, make_state(step), {'position': {'step': step}}, -step)
    checkpoints.wait()
    print(step, flush=True)
"""


def kill_while_saving(path):
    """Kills a process at some moment of saving; returns the last step that it said was
    there."""
    with run(SAVER, str(path)) as process:
        begun = [process.stdout.readline(), process.stdout.readline()]
        time.sleep(random.uniform(0, 0.3))
        process.send_signal(signal.SIGKILL)
        return int([*begun, *process.stdout.readlines()][-1])


@pytest.mark.skipif(os.name != 'posix', reason='kills as POSIX does')
@pytest.mark.parametrize('kills', [1, pytest.param(12, marks=pytest.mark.slow)])
def test_a_kill_at_any_moment_leaves_the_checkpoints_good(tmp_path, kills, warnings):
    for _ in range(kills):
        last = kill_while_saving(tmp_path)
        step, state, metadata = restore(tmp_path, warnings.append)
        assert step in (last, last + 1)
        assert_equal(state, make_state(step))
        assert metadata == {'position': {'step': step}}
    assert warnings == []


def test_the_last_checkpoints_are_averaged_or_the_best(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=4, keep_best=2)
    for step, score in enumerate([0.5, 0.9, 0.1, 0.7], 1):
        checkpoints.save(step, make_state(step), {}, score)
    checkpoints.close()

    def chosen(number, which, patience=0):
        settings = SimpleNamespace(average=number, average_of=which)
        train = SimpleNamespace(patience=patience)
        config = SimpleNamespace(evaluation=settings, train=train)
        return trained_run.average_steps(config, checkpoints)

    assert list(chosen(2, 'last')) == [3, 4]
    assert sorted(chosen(2, 'best')) == [2, 4]
    assert list(chosen(1, 'last', patience=3)) == [2]


def test_a_checkpoint_of_a_stop_goes_when_the_next_is_there_and_counts_as_none(
    tmp_path,
):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step, due in ((1, True), (2, True), (3, False)):
        checkpoints.save(step, make_state(step), {}, due=due)
    checkpoints.wait()
    assert checkpoints.steps() == [1, 2, 3] and checkpoints.last_steps(5) == [1, 2]
    checkpoints.save(4, make_state(4), {})
    checkpoints.close()
    assert checkpoints.steps() == [2, 4] == checkpoints.last_steps(2)


def test_where_only_a_stop_has_saved_that_is_the_last(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, make_state(1), {}, due=False)
    checkpoints.close()
    assert checkpoints.last_steps(3) == [1]

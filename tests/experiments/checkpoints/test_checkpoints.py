"""Tests that checkpoints are restored exactly, or the previous one after damage."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments import storage
from experiments.checkpoints import base, checkpoints, digest
from experiments.checkpoints.checkpoints import Checkpoints, RemovedCheckpoint
from experiments.errors import UserError
from experiments.runs import trained_run
from experiments.runtime import mesh
from flaxformer_lite.layers.dense.base import Dense


class State(NamedTuple):
    step: jax.Array
    params: dict
    opt_state: tuple
    key: jax.Array


def make_state(step, width=8):
    """Returns a state with one leaf of each kind that identifies its step."""
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


def content(path):
    return {p: p.read_bytes() for p in path.rglob('*') if p.is_file()}


# What is saved comes back.


def test_the_latest_comes_back_as_it_was_with_all_that_belongs_to_it(tmp_path):
    save(tmp_path, 10, 20)
    step, state, metadata = restore(tmp_path)
    assert (step, metadata) == (20, {'progress': {'step': 20}})
    assert_equal(state, make_state(20))
    # The keys go on as those saved would have.
    assert_equal(jax.random.bits(state.key), jax.random.bits(make_state(20).key))


def test_there_is_nothing_to_restore_at_first(tmp_path):
    assert restore(tmp_path / 'new') is None


def test_metadata_comes_back_exactly(tmp_path):
    metadata = {'seconds': 0.1 + 0.2, 'none': None, 'list': [1, 'ä'], 'large': 2**60}
    metadata |= {'window': {'a': float('inf'), 'b': float('nan')}}
    with contextlib.closing(Checkpoints(tmp_path)) as checkpoints:
        checkpoints.save(1, make_state(1), metadata)
        assert str(checkpoints.restore(ABSTRACT).metadata) == str(metadata)


def test_a_state_may_be_donated_as_soon_as_save_returns(tmp_path):
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


def test_devices_may_be_others_than_those_that_saved(tmp_path):
    save(tmp_path, 1)
    mesh = jax.make_mesh((4,), ('data',), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('data'))
    whole = ABSTRACT.params['dense']['kernel']
    divided = jax.ShapeDtypeStruct((8, 64), jnp.float32, sharding=rows)

    def read(path, shape):
        abstract = {'params': {'dense': {'kernel': shape}}}
        return mean_of(path, [1], abstract).variables

    found = read(tmp_path, divided)
    kernel = found['params']['dense']['kernel']
    assert kernel.sharding == rows
    assert_equal(kernel, make_state(1).params['dense']['kernel'])
    with contextlib.closing(Checkpoints(tmp_path / 'again')) as checkpoints:
        checkpoints.save(1, found, {})
    again = read(tmp_path / 'again', whole)['params']['dense']['kernel']
    assert len(again.devices()) == 1
    assert_equal(again, kernel)


def test_a_state_of_another_model_is_refused(tmp_path):
    save(tmp_path, 1)
    with contextlib.closing(Checkpoints(tmp_path)) as checkpoints:
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
    assert steps_of(tmp_path) == [1]


# Which stay.


def test_the_last_and_the_best_stay_by_scores_that_come_later(tmp_path):
    scores = {}
    kept = dict(keep=2, keep_best=2, scores=scores)
    with contextlib.closing(Checkpoints(tmp_path, **kept)) as checkpoints:
        for step, score in enumerate([0.5, None, 0.9, 0.1, None, 0.8, None], 1):
            checkpoints.save(step, make_state(step), {})
            if score is not None:
                scores[step] = score
    assert steps_of(tmp_path) == [3, 6, 7]
    # Also by a process that did not see them saved.
    scores |= {8: 0.85, 9: 0.0}
    save(tmp_path, 8, 9, **kept)
    assert steps_of(tmp_path) == [3, 8, 9]
    reader = Checkpoints(tmp_path, scores=scores)
    assert reader.best_steps(2) == [3, 8] and reader.best_steps(10) == [3, 8, 9]


def test_a_checkpoint_of_a_stop_changes_nothing(tmp_path):
    options = dict(keep=2, is_due=lambda step: step % 10 == 0)
    save(tmp_path, 10, 20, 25, **options)
    reader = Checkpoints(tmp_path)
    assert reader.steps() == [10, 20, 25] and reader.last_steps(5) == [10, 20]
    save(tmp_path, 30, **options)
    assert reader.steps() == [20, 30] == reader.last_steps(2)


def test_saving_a_step_again_is_refused(tmp_path):
    with contextlib.closing(Checkpoints(tmp_path)) as checkpoints:
        checkpoints.save(5, make_state(5), {})
        for step in (4, 5):
            with pytest.raises(UserError, match=f'step {step} is not after'):
                checkpoints.save(step, make_state(step), {})


# Damage.


def flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0x10
    file.write_bytes(data)


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.parametrize('damage', [flip, cut, Path.unlink])
def test_damage_to_a_file_never_gives_other_bits(tmp_path, damage):
    save(tmp_path / 'whole', 10, 20)
    noticed = set()
    for i, file in enumerate(sorted(content(tmp_path / 'whole' / '20'))):
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
            noticed.add(file.name)
        else:
            assert warnings == []
    assert {'metadata', 'manifest.ocdbt', '_METADATA'} <= noticed


def test_an_array_that_is_not_what_was_written_is_named(tmp_path, monkeypatch):
    save(tmp_path, 1)
    facts = digest.array_facts
    wrong = {'params/dense/bias': 'bfloat16[64] 00000000'}
    with monkeypatch.context() as patch:
        patch.setattr(digest, 'array_facts', lambda tree: facts(tree) | wrong)
        save(tmp_path, 2)
    warnings = []
    assert restore(tmp_path, warnings.append).step == 1
    assert warnings == [
        'the checkpoint of step 2 is damaged: params/dense/bias does not match its '
        'checksum'
    ]


def test_an_array_whose_name_is_damaged_is_missing(tmp_path, warnings):
    save(tmp_path, 1, 2)
    names = tmp_path / '2' / 'state' / '_METADATA'
    names.write_bytes(names.read_bytes().replace(b'bias', b'bjas'))
    with contextlib.closing(Checkpoints(tmp_path)) as checkpoints:
        abstract = {'params': ABSTRACT.params}
        assert checkpoints.restore(abstract, warnings.append).step == 1
    assert warnings == [
        'the checkpoint of step 2 is damaged: params/dense/bias is missing'
    ]


def test_what_a_damaged_checkpoint_was_is_saved_again(tmp_path, warnings):
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


def test_a_run_is_not_begun_again_in_silence(tmp_path, warnings):
    save(tmp_path, 10)
    shutil.rmtree(tmp_path / '10' / 'state')
    with pytest.raises(UserError, match='all checkpoints in .* are damaged'):
        restore(tmp_path, warnings.append)
    assert (tmp_path / '10').exists() and len(warnings) == 1


# What cannot be read now is not damaged.


def without_permission(path):
    path.chmod(0)


def in_a_circle(path):
    path.unlink()
    path.symlink_to(path.name)


UNREADABLE = [
    ('metadata', 'metadata/metadata', without_permission),
    ('manifest', 'state/manifest.ocdbt', without_permission),
    ('arrays', 'state/ocdbt.process_0/d/*', without_permission),
    ('tree', 'state/_METADATA', without_permission),
    ('values', 'state/ocdbt.process_0/d/*', in_a_circle),
    ('folder', 'state', without_permission),
    ('whole', '', without_permission),
]


@pytest.mark.skipif(os.name != 'posix', reason='permissions as POSIX has them')
@pytest.mark.parametrize(
    ('pattern', 'harm'), [x[1:] for x in UNREADABLE], ids=[x[0] for x in UNREADABLE]
)
def test_what_cannot_be_read_is_told_and_left_alone(nobody, pattern, harm, warnings):
    save(nobody, 10, 20)
    newest = nobody / '20'
    for file in list(newest.glob(pattern)) if pattern else [newest]:
        harm(file)
    message = 'cannot read .*20.*: (Permission denied|Too many levels of symbolic)'
    with pytest.raises(UserError, match=message):
        restore(nobody, warnings.append)
    with pytest.raises(UserError, match=message):
        mean_of(nobody, [10, 20], warn=warnings.append)
    assert steps_of(nobody) == [10, 20] and warnings == []


def raising(error):
    def raise_it(*_, **__):
        raise error

    return raise_it


WITHOUT_MEMORY = jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Out of memory')


@pytest.mark.parametrize(
    ('owner', 'name', 'error', 'reason'),
    [
        (checkpoints, '_restore_arrays', OSError(5, 'Input/output error'), 'Input/ou'),
        (checkpoints, '_restore_arrays', MemoryError(), 'MemoryError'),
        (checkpoints, '_restore_arrays', WITHOUT_MEMORY, 'RESOURCE_EXHAUSTED: Out'),
        (checkpoints, '_restore_arrays', ValueError('UNKNOWN: EIO'), 'UNKNOWN: EIO'),
        (checkpoints, '_read_content', OSError(5, 'Input/output error'), 'Input/ou'),
        (digest, 'array_facts', WITHOUT_MEMORY, 'RESOURCE_EXHAUSTED: Out'),
    ],
)
def test_a_disk_or_a_memory_that_fails_is_no_damage(
    tmp_path, monkeypatch, warnings, owner, name, error, reason
):
    save(tmp_path, 10, 20)
    wrapped = Exception('Orbax: cannot read')
    wrapped.__cause__ = error
    for raised in (error, wrapped) if owner is checkpoints else (error,):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, raising(raised))
            with pytest.raises(UserError, match=f'cannot read .*20: .*{reason}'):
                restore(tmp_path, warnings.append)
    assert steps_of(tmp_path) == [10, 20] and warnings == []
    assert restore(tmp_path).step == 20


# Means, and readers of a run that trains.


def test_the_mean_is_of_those_that_are_good(tmp_path, warnings):
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


def test_reading_changes_nothing(tmp_path):
    save(tmp_path, 1, 2)
    (tmp_path / '3.orbax-checkpoint-tmp').mkdir()
    before = sorted(tmp_path.rglob('*'))
    checkpoints = Checkpoints(tmp_path)
    checkpoints.average(checkpoints.steps(), PARAMS)
    checkpoints.close()
    assert sorted(tmp_path.rglob('*')) == before
    assert steps_of(tmp_path / 'missing') == []
    assert not (tmp_path / 'missing').exists()


def config(number, which, patience=0):
    return SimpleNamespace(
        evaluation=SimpleNamespace(average=number, average_of=which),
        train=SimpleNamespace(patience=patience),
    )


def test_adapters_are_read_with_the_base_that_they_trained_with(tmp_path):
    params = {'kernel': jnp.ones(3), 'lora_a': jnp.zeros(3)}
    held = frozenset({'kernel'})
    base.save(tmp_path, params, held, 'runs/first')
    saved = Checkpoints(tmp_path / 'checkpoints')
    adapters = {'lora_a': params['lora_a']}
    saved.save(7, adapters, {'base': base.facts(tmp_path)})
    saved.wait()
    joined = base.join(saved, adapters, params, held)
    jax.tree.map(np.testing.assert_array_equal, joined, params)

    base.save(tmp_path, {'kernel': jnp.zeros(3)}, held, 'runs/first')
    refused = (
        '^{}/base {}: the adapters of step 7 belong to runs/first, digest .{{8}}. R'
    )
    with pytest.raises(
        UserError, match=refused.format(tmp_path, 'differs from the base')
    ):
        base.join(saved, adapters, params, held)
    shutil.rmtree(tmp_path / 'base')
    with pytest.raises(
        UserError, match=refused.format(tmp_path, 'is missing or damaged')
    ):
        base.join(saved, adapters, params, held)


def test_the_last_checkpoints_are_averaged_or_the_best(tmp_path):
    save(tmp_path, 1, 2, 3, 4)
    scores = {1: 0.5, 2: 0.9, 3: 0.1, 4: 0.7}
    checkpoints = Checkpoints(tmp_path, scores=scores)

    def chosen(*arguments):
        return trained_run.average_steps(config(*arguments), checkpoints)

    assert chosen(2, 'last') == [3, 4]
    assert chosen(2, 'best') == [2, 4]
    assert chosen(1, 'last', 3) == [2]


@pytest.fixture
def shapes(monkeypatch):
    monkeypatch.setattr(mesh, 'abstract_variables', lambda *_: PARAMS)


def save_ever_more(path, stop):
    checkpoints = Checkpoints(path)
    step = checkpoints.steps()[-1]
    while not stop.is_set():
        step += 1
        checkpoints.save(step, make_state(step), {})
    checkpoints.close()


def test_a_run_that_trains_can_be_read_at_any_time(tmp_path, shapes, monkeypatch):
    monkeypatch.setattr(trained_run, '_ATTEMPTS', 1000)
    path = tmp_path / 'checkpoints'
    save(path, 1)
    stop = threading.Event()
    trainer = threading.Thread(target=save_ever_more, args=(path, stop))
    trainer.start()
    try:
        checkpoints, read = Checkpoints(path), []
        model = SimpleNamespace(dense=Dense())
        while len(set(read)) < 8:
            mean = trained_run.average(
                config(2, 'last'), checkpoints, model, pytest.fail
            )
            read.append(mean.steps[-1])
            if len(mean.steps) == 1:
                assert_equal(mean.variables['params'], make_state(read[-1]).params)
    finally:
        stop.set()
        trainer.join()
    assert read == sorted(read)


# Kills, power cuts, full disks.


def run(code, *arguments, before='', **options):
    package = 'tests.experiments.checkpoints'
    program = f'{before}\nfrom {package}.test_checkpoints import *\n{code}'
    return subprocess.Popen(
        [sys.executable, '-c', program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
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
        assert metadata == {'progress': {'step': step}}
    assert warnings == []
    save(tmp_path, last + 2)
    assert {p.name for p in tmp_path.iterdir()} == set(map(str, steps_of(tmp_path)))


def test_all_is_on_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(storage, 'sync', synced.append)
    save(tmp_path, 1, 2)
    assert [(path.parent, path.name.split('.')[0]) for path in synced] == [
        (tmp_path, '1'),
        (tmp_path, '2'),
    ]


# A command does this before its other imports.
SILENCE = 'from experiments.command_line import command; command.silence_orbax()'
# Files may grow to some size only: as with a full disk or a quota, a write fails half
# way.
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


@pytest.mark.skipif(os.name != 'posix', reason='limits as POSIX has them')
@pytest.mark.parametrize('limit', [0, 200, 500_000])
def test_a_disk_that_is_full_leaves_the_last_checkpoint_good(tmp_path, limit):
    save(tmp_path, 1)
    output, noise = run(FULL, str(tmp_path), str(limit), before=SILENCE).communicate()
    assert noise == ''
    assert output.startswith(f'cannot write a checkpoint to {tmp_path}: ')
    assert output.count('\n') == 1 and 'File too large' in output
    assert restore(tmp_path).step == 1
    save(tmp_path, 3)
    assert sorted(p.name for p in tmp_path.iterdir()) == ['1', '3']

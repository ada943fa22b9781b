"""Tests of opening a run's directory: damaged files, and a run that still trains."""

import threading
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_runs

from experiments import evaluate, storage, translate
from experiments.checkpoints.checkpoints import Checkpoints
from experiments.errors import UserError
from experiments.evaluation.opened_run import OpenedRun
from experiments.runs import trained_run
from experiments.runtime import mesh
from flaxformer_explain import demo
from flaxformer_lite.layers.dense.base import Dense


def change_config(field, value):
    """Returns a function that replaces or deletes a field of a run's config.json."""

    def change(path):
        config = storage.read_json(path / 'config.json')
        *sections, name = field.split('.')
        fields = config
        for section in sections:
            fields = fields.setdefault(section, {})
        if value is None:
            del fields[name]
        else:
            fields[name] = value
        storage.write_json(path / 'config.json', config)

    return change


def change_tokenizer(path):
    file = path / 'tokenizer.model'
    content = file.read_bytes()
    file.write_bytes(content.replace(b'er', b'et'))
    assert file.read_bytes() != content


def remove_checkpoints(path):
    (path / 'checkpoints').rename(path / 'moved')


@pytest.mark.parametrize(
    ('damage', 'message'),
    [
        (lambda path: (path / 'config.json').unlink(), 'not a run directory'),
        (remove_checkpoints, 'no complete checkpoint yet'),
        (change_tokenizer, 'tokenizer.model differs from the tokenizer of step 12'),
        (change_config('model.block', None), 'missing config field model.block'),
        (change_config('model', []), 'config.json'),
        (change_config('model.d_model', 'wide'), 'model.d_model'),
        (change_config('model.norm', 7), 'model.norm'),
        (change_config('model.attention', ['softmax']), 'model.attention'),
        (change_config('model.a.b', 1), 'model.a'),
        (change_config('evaluation.decode', 'beam(beams="many")'), 'evaluation.decode'),
        (change_config('evaluation.average_of', 'worst'), 'evaluation.average_of'),
        (change_config('data', 1), 'data'),
        (
            change_config('model.cross.attention', 'flash'),
            r'model\.cross\.attention: flash runs only on a gpu',
        ),
    ],
)
def test_damaged_run_directory_is_rejected_in_one_line(
    run_copy, monkeypatch, damage, message
):
    monkeypatch.setattr('jax.default_backend', lambda: 'cpu')
    damage(run_copy)
    before = small_runs.files(run_copy)
    with pytest.raises(UserError, match=message) as error:
        OpenedRun(run_copy)
    assert str(run_copy) in str(error.value) and '\n' not in str(error.value)
    assert small_runs.files(run_copy) == before


@pytest.mark.parametrize('module', [demo, evaluate, translate])
def test_step_without_a_checkpoint_is_rejected(module, trained_run, command):
    flags = [f'--workdir={trained_run}', '--step=7']
    flags += ['--port=0'] if module is demo else []
    with pytest.raises(UserError, match=r'^step: .* step 7\. .* 6, 8, 12\.$'):
        command(module, *flags)


def config(number, which, patience=0):
    return SimpleNamespace(
        evaluation=SimpleNamespace(average=number, average_of=which),
        train=SimpleNamespace(patience=patience),
    )


def test_last_or_best_checkpoints_are_averaged(tmp_path):
    for step in (1, 2, 3, 4):
        (tmp_path / str(step)).mkdir()
    scores = {1: 0.5, 2: 0.9, 3: 0.1, 4: 0.7}
    checkpoints = Checkpoints(tmp_path, scores=scores)

    def average_steps(*arguments):
        return trained_run.average_steps(config(*arguments), checkpoints)

    assert average_steps(2, 'last') == [3, 4]
    assert average_steps(2, 'best') == [2, 4]
    assert average_steps(1, 'last', 3) == [2]


def test_run_can_be_read_while_it_trains(tmp_path, monkeypatch):
    monkeypatch.setattr(trained_run, '_ATTEMPTS', 1000)
    path = tmp_path / 'checkpoints'
    stop, saved = threading.Event(), threading.Event()

    def save_steps():
        checkpoints = Checkpoints(path)
        step = 0
        while not stop.is_set():
            step += 1
            checkpoints.save(step, {'params': {'x': jnp.full(8, float(step))}}, {})
            if step > 1:
                saved.set()
        checkpoints.close()

    one_device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shape = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=one_device)
    monkeypatch.setattr(mesh, 'abstract_variables', lambda *_: {'params': {'x': shape}})
    trainer = threading.Thread(target=save_steps)
    trainer.start()
    try:
        assert saved.wait(60)
        steps = []
        model = SimpleNamespace(dense=Dense())
        while len(set(steps)) < 8:
            mean = trained_run.average(
                config(2, 'last'), Checkpoints(path), model, pytest.fail
            )
            steps.append(mean.steps[-1])
            expected = np.full(8, np.mean(mean.steps), np.float32)
            np.testing.assert_array_equal(mean.variables['params']['x'], expected)
    finally:
        stop.set()
        trainer.join()
    assert steps == sorted(steps)

"""Tests of compiled training programs: what they overwrite, and when they are freed."""

import functools
import gc
import weakref

import jax
import numpy as np
import pytest
import tiny
from small_runs import Numbers

from configs import wmt_base
from experiments.config import components, load
from experiments.config.decoding import decoding_options
from experiments.config.schema import EvaluationConfig, without_seeds
from experiments.evaluation.scorer import Scorer
from experiments.evaluation.translator import Translator
from experiments.runtime import mesh
from experiments.training.programs import TrainingPrograms
from flaxformer_lite.training.loss import as_loss
from flaxformer_lite.training.train_step import TrainState, make_train_step


class Words(Numbers):
    vocab_size = tiny.VOCAB

    def pieces(self, ids):
        return list(map(str, ids))


def training_programs(model):
    config = wmt_base.get_config()
    config.model.update(tiny.SIZES | {'num_layers': 1})
    config = without_seeds(load.from_config_dict(config))
    loss, optimizer = as_loss(config.train.loss), components.make_optimizer(config)
    return TrainingPrograms(config, model, loss, optimizer, 10, mesh.make_mesh())


@pytest.mark.slow
@pytest.mark.skipif(
    jax.__version_info__ < (0, 9),
    reason='JAX keeps the static arguments of functions that it has traced',
)
def test_model_is_freed_with_its_programs():
    model = tiny.model(num_layers=1)
    variables = tiny.random_like(mesh.abstract_variables(model))
    training = training_programs(model)
    training.step((jax.device_count(), 4))
    settings = EvaluationConfig(decode='greedy', extra_length=3)
    translate = Translator(model, Words(), decoding_options(settings))
    assert len(list(translate(variables, ['3 4']))) == 1
    score = Scorer(model, Words(), 64)
    assert len(list(score(variables, [('3', '4')]))) == 1
    reference = weakref.ref(model)
    del model, training, translate, score
    jax.clear_caches()  # of functions with a static model, such as `generate`
    gc.collect()
    assert reference() is None


@pytest.mark.slow
def test_peak_rate_as_an_argument_equals_a_constant_peak():
    model = tiny.model(num_layers=1)
    config = wmt_base.get_config()
    config.optimizer.schedule = 'cosine(peak=0.0123, warmup=0.4)'
    optimizer = components.make_optimizer(load.from_config_dict(config))
    batch = tiny.batch([[pair] for pair in tiny.PAIRS])
    first = TrainState.create(tiny.all_variables(model), optimizer.build(model)[0])

    def step(state, peak):
        update, _ = optimizer.build(model, 10, peak)
        return make_train_step(model, update)(state, batch, jax.random.key(1))[0]

    def train(step, *peak):
        state = first
        for _ in range(6):  # a warmup of 4
            state = step(state, *peak)
        return jax.device_get(state)

    expected = train(jax.jit(functools.partial(step, peak=None)))
    with_argument = jax.jit(step)
    found = train(with_argument, np.float32(0.0123))
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    other = train(with_argument, np.float32(0.0124))
    assert (other.params['embedding'] != found.params['embedding']).any()


@pytest.mark.slow
def test_training_step_overwrites_the_state_on_each_device():
    training = training_programs(tiny.model(num_layers=1))
    program = training.step((jax.device_count(), 7))
    _, state = training.first_state
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
    assert program.memory_analysis().alias_size_in_bytes == size
    assert 'callback' not in program.as_text()

"""Tests of parameter averages for evaluation."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny
from test_frozen import build, config

from experiments.checkpoints.checkpoints import Checkpoints
from experiments.config import components
from experiments.optimizers import eval_params, frozen
from flaxformer_lite.training import freezing
from flaxformer_lite.training.train_step import (
    TrainState,
    init_state,
    make_train_step,
)

RATE, B1 = 0.1, 0.8
GRADIENTS = np.random.default_rng(0).standard_normal((5, 2))


def train(optimizer, gradients):
    params = {'w': jnp.asarray([1.0, -2.0])}
    zero = jnp.int32(0)
    state = TrainState(zero, params, optimizer.init(params), skipped=zero)
    update = jax.jit(optimizer.update)
    for gradient in gradients:
        gradient = {'w': jnp.float32(gradient)}
        updates, opt_state = update(gradient, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        state = state.replace(params=params, opt_state=opt_state)
    return state


def schedule_free():
    inner = optax.contrib.schedule_free_sgd(optax.constant_schedule(RATE), b1=B1)
    return optax.chain(optax.clip_by_global_norm(100.0), inner)


def ema(decay=0.9):
    return eval_params.with_ema(optax.sgd(RATE), decay)


def recurrence(thetas, decay):
    """Returns e ← d e + (1 − d) θ from e = 0, divided by 1 − dᵗ, in float64."""
    average = np.zeros_like(thetas[0], np.float64)
    for theta in thetas:
        average = decay * average + (1 - decay) * np.asarray(theta, np.float64)
    return average / (1 - decay ** len(thetas))


@pytest.mark.parametrize('decay', [0.3, 0.9, 0.9999])
def test_ema_is_the_bias_corrected_average_of_the_parameters(decay):
    thetas = np.array([1.0, -2.0]) - RATE * np.cumsum(GRADIENTS, axis=0)
    for steps in (1, 2, 5):
        state = train(ema(decay), GRADIENTS[:steps])
        np.testing.assert_allclose(state.params['w'], thetas[steps - 1], rtol=1e-6)
        found = eval_params.variables(state)['params']['w']
        expected = recurrence(thetas[:steps], decay)
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ('optimizer', 'gradients'),
    [(ema(), []), (optax.adam(RATE), GRADIENTS)],
    ids=['ema_before_an_update', 'adam'],
)
def test_without_an_average_the_trained_parameters_are_evaluated(optimizer, gradients):
    state = train(optimizer, gradients)
    found = eval_params.variables(state)['params']['w']
    np.testing.assert_array_equal(found, state.params['w'])
    if len(gradients):
        assert eval_params.to_save(state) is state
        assert eval_params.restored(eval_params.to_restore(state)) is state


@pytest.mark.slow
@pytest.mark.parametrize(
    'fields',
    [
        {'model__num_layers': 1, 'model__architecture': 'decoder_only'},
        {'model__scan_layers': True, 'optimizer__name': 'lamb'},
        {
            'model__init': 'mu_p',
            'optimizer__schedule': 'constant_schedule(value=1e-2)',
        },
    ],
    ids=str,
)
def test_ema_in_training_ignores_skipped_steps_and_frozen_parameters(fields):
    settings = config(
        train__ema=0.8, train__freeze='feed_forward', optimizer__clip=0.1, **fields
    )
    model = build(settings)
    frozen_paths = frozen.paths(settings.train.freeze, model)
    update, _ = components.make_optimizer(settings).build(model)
    init = functools.partial(init_state, model, update, frozen=frozen_paths)
    state = jax.jit(init)(jax.random.key(0))
    step = jax.jit(make_train_step(model, update, accumulate=2, frozen=frozen_paths))
    pairs = [*tiny.PAIRS, ([6, 5, 4, 1], [3, 1])]
    batch = tiny.batch([[pair] for pair in pairs])
    first, found = freezing.paths(state.params), []
    for i in range(4):
        state, _ = step(state, batch, jax.random.key(1))
        found.append(jax.device_get(freezing.paths(state.params)))
        if i == 1:  # a step that is skipped
            params = state.params
            broken = jax.tree.map(lambda x: np.full_like(x, np.nan), params)
            state, _ = step(state.replace(params=broken), batch, jax.random.key(1))
            assert state.skipped == 1
            state = state.replace(params=params)
    averages = freezing.paths(eval_params.variables(state)['params'])
    num_averaged = 0
    for path, average in averages.items():
        if path in frozen_paths:
            assert np.asarray(average).tobytes() == np.asarray(first[path]).tobytes()
            continue
        expected = recurrence([params[path] for params in found], 0.8)
        np.testing.assert_allclose(average, expected, rtol=1e-5, atol=1e-7)
        is_last = np.allclose(average, found[-1][path], rtol=1e-5, atol=1e-7)
        num_averaged += not is_last
    assert frozen_paths and num_averaged > 5


def test_schedule_free_optimizer_is_evaluated_at_the_mean_of_its_iterates():
    """Checks Defazio et al. (2024), equations 3 to 5, at a constant rate."""
    z = np.array([1.0, -2.0]) - RATE * np.cumsum(GRADIENTS, axis=0)
    mean = z.mean(0)
    state = train(schedule_free(), GRADIENTS)
    found = eval_params.variables(state)['params']['w']
    np.testing.assert_allclose(found, mean, atol=1e-5)
    y = B1 * mean + (1 - B1) * z[-1]
    np.testing.assert_allclose(state.params['w'], y, atol=1e-5)


@pytest.mark.parametrize('make', [schedule_free, ema])
def test_checkpoint_stores_the_average_and_restores_the_training_state(make, tmp_path):
    state = train(make(), GRADIENTS)
    abstract = jax.eval_shape(lambda x: x, state)
    with contextlib.closing(Checkpoints(tmp_path)) as checkpoints:
        checkpoints.save(5, eval_params.to_save(state), {})
        tree = checkpoints.restore(eval_params.to_restore(abstract)).state
        read = checkpoints.average([5], {'params': abstract.params}).variables
    jax.tree.map(np.testing.assert_array_equal, eval_params.restored(tree), state)
    expected = eval_params.variables(state)
    np.testing.assert_array_equal(read['params']['w'], expected['params']['w'])
    assert (np.asarray(read['params']['w']) != state.params['w']).all()

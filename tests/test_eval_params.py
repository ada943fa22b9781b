"""Schedule-free optimizers are evaluated with their average of the iterates."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.checkpoints.checkpoints import Checkpoints
from experiments.optimizers import eval_params
from flaxformer_lite.training.train_step import TrainState

RATE, B1 = 0.1, 0.8


def trained(optimizer, gradients):
    params = {'w': jnp.asarray([1.0, -2.0])}
    zero = jnp.int32(0)
    state = TrainState(zero, params, optimizer.init(params), skipped=zero)
    for gradient in gradients:
        updates, opt_state = optimizer.update(
            {'w': jnp.float32(gradient)}, state.opt_state, state.params
        )
        params = optax.apply_updates(state.params, updates)
        state = state.replace(params=params, opt_state=opt_state)
    return state


def schedule_free():
    inner = optax.contrib.schedule_free_sgd(optax.constant_schedule(RATE), b1=B1)
    return optax.chain(optax.clip_by_global_norm(100.0), inner)


GRADIENTS = np.random.default_rng(0).standard_normal((5, 2))


def test_a_schedule_free_optimizer_is_evaluated_at_the_mean_of_its_iterates():
    """Defazio et al. (2024), equations 3 to 5: at a constant rate x is the mean of z_1
    … z_t."""
    z = np.array([1.0, -2.0]) - RATE * np.cumsum(GRADIENTS, axis=0)
    mean = z.mean(0)
    state = trained(schedule_free(), GRADIENTS)
    found = eval_params.variables(state)['params']['w']
    np.testing.assert_allclose(found, mean, atol=1e-5)
    y = B1 * mean + (1 - B1) * z[-1]
    np.testing.assert_allclose(state.params['w'], y, atol=1e-5)


def test_other_optimizers_are_evaluated_at_what_they_train():
    state = trained(optax.adam(RATE), GRADIENTS)
    np.testing.assert_array_equal(
        eval_params.variables(state)['params']['w'], state.params['w']
    )
    assert eval_params.to_save(state) is state
    assert eval_params.restored(eval_params.to_restore(state)) is state


def test_a_checkpoints_params_are_the_average_and_training_goes_on_from_its_state(
    tmp_path,
):
    state = trained(schedule_free(), GRADIENTS)
    abstract = jax.eval_shape(lambda x: x, state)
    with contextlib.closing(Checkpoints(tmp_path)) as checkpoints:
        checkpoints.save(5, eval_params.to_save(state), {})
        tree = checkpoints.restore(eval_params.to_restore(abstract)).state
        read = checkpoints.average([5], {'params': abstract.params}).variables
    jax.tree.map(np.testing.assert_array_equal, eval_params.restored(tree), state)
    expected = eval_params.variables(state)
    np.testing.assert_array_equal(read['params']['w'], expected['params']['w'])
    assert (np.asarray(read['params']['w']) != state.params['w']).all()

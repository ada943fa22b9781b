"""Tests of data parallelism."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import meshes
import numpy as np
import pytest
import tiny
from collectives import collectives, total_bytes

from flaxformer_lite.layers.dropout import keep_mask
from flaxformer_lite.ops import loss_of_logits, use_reference
from flaxformer_lite.sharding import sum_over_data
from flaxformer_lite.training.loss import loss_sums
from flaxformer_lite.training.train_step import init_state, make_train_step

F32, BF16 = jnp.float32, jnp.bfloat16
B, T, D, V = 8, 7, 6, 21
RATE = 1e-2
KEY = jax.random.key(1)


@pytest.fixture(autouse=True)
def several_turns(monkeypatch):
    """Makes the loss loop several times, since XLA unrolls a single iteration."""
    assert jax.device_count() == 4
    monkeypatch.setattr(loss_of_logits, 'CHUNK_ON_CPU', 4)


def alone(function, *arguments):
    return jax.device_get(jax.jit(function)(*arguments))


def on_devices(function, whole, divided):
    mesh = meshes.make_mesh()
    everywhere, rows = meshes.everywhere(mesh), meshes.rows(mesh)
    arguments = [jax.device_put(x, everywhere) for x in whole]
    arguments += [jax.device_put(x, rows) for x in divided]
    jitted = jax.jit(function, out_shardings=everywhere)
    program = meshes.compile_on(mesh, jitted, *arguments)
    return jax.device_get(program(*arguments)), program


def assert_close(found, expected, atol=1e-5):
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, atol=atol), found, expected
    )


def assert_none_in_loops(program):
    looped = [each for each in collectives(program) if each.in_loop]
    assert not looped


def loss_arguments(rows=B):
    rng = np.random.default_rng(0)
    table_VD = rng.normal(size=(V, D)).astype(np.float32)
    hidden_BTD = rng.normal(size=(rows, T, D)).astype(np.float32)
    labels_BT = rng.integers(0, V, (rows, T)).astype(np.int32)
    labels_BT[3, 2:] = 0  # devices have unequal numbers of tokens
    return (table_VD,), (hidden_BTD, labels_BT)


def loss_and_gradients(smoothing=0.1, dtype=F32):
    settings = loss_of_logits.LossOptions(
        loss_of_logits.cross_entropy(smoothing, 0), dtype
    )

    def loss(table_VD, hidden_BTD, labels_BT):
        sums = loss_of_logits.loss_of_logits(
            hidden_BTD, (table_VD, None), (labels_BT,), settings
        )
        return 3 * sums.loss, sums

    return jax.grad(loss, (0, 1), has_aux=True)


@pytest.mark.parametrize('ops', [contextlib.nullcontext, use_reference])
@pytest.mark.parametrize(('smoothing', 'dtype'), [(0.0, F32), (0.1, F32), (0.1, BF16)])
def test_the_loss_and_its_gradients_are_those_of_one_device(smoothing, dtype, ops):
    function = loss_and_gradients(smoothing, dtype)
    whole, divided = loss_arguments()
    with ops():
        expected = alone(function, *whole, *divided)
        found, program = on_devices(function, whole, divided)
    # Sums in another order; in bfloat16 also of gradients that were rounded.
    assert_close(found, expected, 2e-5 if dtype == F32 else 0.05)
    assert_none_in_loops(program)


def test_devices_exchange_the_gradient_of_the_table_once_and_four_sums():
    _, program = on_devices(
        lambda *x: loss_and_gradients()(*x)[0][0], *loss_arguments()
    )
    assert_none_in_loops(program)
    found = collectives(program)
    assert {each.kind for each in found} == {'all-reduce'}
    assert 4 * V * D <= total_bytes(found) <= 4 * V * D + 4 * 4


@pytest.mark.parametrize('ops', [contextlib.nullcontext, use_reference])
def test_dropout_draws_for_own_rows_what_it_draws_for_all(ops):
    def dropped(key, x_BT):
        keep = keep_mask(key, x_BT.shape, 0.5, of_rows=True)
        return jnp.where(keep, x_BT, 0).sum(0)

    x_BT = np.arange(1.0, 1 + B * T).reshape(B, T)
    with ops():
        expected = alone(dropped, KEY, x_BT)
        found, _ = on_devices(lambda *x: sum_over_data(dropped)(*x), (KEY,), (x_BT,))
    np.testing.assert_array_equal(found, expected)


def rows_of_pairs():
    pairs = [*tiny.PAIRS, ([6, 5, 4, 1], [3, 1])] * 2
    return tiny.batch([[pair] for pair in pairs])


def test_evaluation_exchanges_four_sums_alone():
    model = tiny.model(num_layers=1)
    variables = tiny.all_variables(model)
    sums = functools.partial(loss_sums, model)
    found, program = on_devices(sums, (variables,), (rows_of_pairs(),))
    assert_close(found, alone(sums, variables, rows_of_pairs()), 1e-4)
    assert_none_in_loops(program)
    assert total_bytes(collectives(program)) <= 4 * 4


def train_step(accumulate=1, **overrides):
    model = tiny.model(num_layers=1, **overrides)
    step = make_train_step(model, tiny.adam(RATE), accumulate=accumulate)
    first = functools.partial(init_state, model, tiny.adam(RATE))
    return step, jax.jit(first)(jax.random.key(0))


def exchanged(step, state):
    mesh = meshes.make_mesh()
    everywhere = meshes.everywhere(mesh)
    state, key = jax.device_put((state, KEY), everywhere)
    batch = jax.device_put(rows_of_pairs(), meshes.rows(mesh))
    jitted = jax.jit(step, donate_argnums=0, out_shardings=everywhere)
    program = meshes.compile_on(mesh, jitted, state, batch, key)
    return program, sum(4 * x.size for x in jax.tree.leaves(state.params))


@pytest.mark.parametrize(
    ('tie', 'accumulate'),
    [
        ('all', 2),
        *(pytest.param(*x, marks=pytest.mark.slow) for x in [('all', 1), ('none', 2)]),
    ],
)
def test_a_training_step_exchanges_gradients_once_and_four_sums(tie, accumulate):
    program, gradients = exchanged(*train_step(accumulate, tie=tie))
    assert_none_in_loops(program)
    found = collectives(program)
    assert {each.kind for each in found} == {'all-reduce'}
    assert total_bytes(found) == gradients + 4 * 4

"""Tests that a scan over layers equals separate layers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import linen as nn
from tiny import apply

from flaxformer_lite.attention.softmax import Softmax
from flaxformer_lite.layer_scope import layer_index
from flaxformer_lite.layers.dropout import Dropout
from flaxformer_lite.layers.scanned_stack import stack_layers, unstack_layers
from flaxformer_lite.training.batch import source_and_inputs
from flaxformer_lite.training.loss import loss_and_grads
from flaxformer_lite.training.train_step import init_variables


@functools.cache
def separate_and_scanned(**overrides):
    """Returns two models of equal layers, each with its variables."""
    separate = tiny.model(**overrides)
    variables = tiny.all_variables(separate)
    scanned = tiny.model(scan_layers=True, **overrides)
    stacked = stack_layers(variables, scanned.layer_periods)
    return (separate, variables), (scanned, stacked)


def assert_close(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        x, y = np.float64(x), np.float64(y)
        finite = y[np.isfinite(y)]
        scale = max(1.0, float(np.abs(finite).max(initial=0)))
        np.testing.assert_allclose(x, y, rtol=0, atol=2e-6 * scale)


# Only the second of two alternating layers writes running statistics and losses.
PATTERN = {
    'architecture': 'decoder_only',
    'num_layers': 4,
    'attention': '[local(window=2), differential]',
    'positions': '[rotary, none]',
    'norm': '[layer, batch]',
    'residual': 'pre_norm',
    'feed_forward': '[relu, mixture]',
    'dropout': 0.0,
}


@pytest.mark.ci
def test_loss_gradients_and_statistics_equal_those_of_separate_layers():
    def step(model, variables):
        step = functools.partial(loss_and_grads, model, dropout_key=jax.random.key(1))
        return jax.jit(step)(variables, tiny.packed_batch())

    separate, (model, variables) = separate_and_scanned(**PATTERN)
    expected, expected_stats = step(*separate)
    found, found_stats = step(model, variables)
    gradients = stack_layers(expected.gradients, model.layer_periods)
    assert_close(found, expected._replace(gradients=gradients))
    assert_close(found_stats, stack_layers(expected_stats, model.layer_periods))


class LayerNumbers(Softmax):
    """A stub whose heads equal the index of their layer."""

    def transform_heads(self, y_BTHU, x_BTD, dense):
        return jnp.zeros_like(y_BTHU) + layer_index()


@pytest.mark.ci
def test_layers_know_their_index_in_their_stack():
    # With two norms, the scan runs two layers in each iteration.
    fields = dict(num_layers=4, attention=LayerNumbers, norm='[layer, rms]')
    fields['architecture'] = 'decoder_only'
    (model, variables), scanned = separate_and_scanned(**fields)
    heads = tiny.record(model, variables, tiny.pairs_batch()).heads
    assert {name: len(layers) for name, layers in heads.items()} == {'decoder': 4}
    for i, x_BTHU in enumerate(heads['decoder']):
        np.testing.assert_array_equal(x_BTHU, np.full(x_BTHU.shape, i))
    arguments = source_and_inputs(tiny.pairs_batch())
    assert_close(apply(*scanned, *arguments), apply(model, variables, *arguments))


@pytest.mark.ci
def test_each_layer_of_a_scan_has_its_own_dropout():
    _, (model, variables) = separate_and_scanned(
        num_layers=3, dropout=0.5, architecture='decoder_only'
    )
    source_BS = inputs_BT = np.full((2, 5), 3, np.int32)
    masks = []

    def record(y):
        masks.append(np.asarray(y) == 0)
        return y

    def intercept(next_fun, args, kwargs, context):
        y = next_fun(*args, **kwargs)
        if isinstance(context.module, Dropout) and y.ndim == 3:
            return jax.pure_callback(record, jax.ShapeDtypeStruct(y.shape, y.dtype), y)
        return y

    with nn.intercept_methods(intercept):
        rngs = {'dropout': jax.random.key(0)}
        logits = model.apply(variables, source_BS, inputs_BT, rngs=rngs)
    jax.block_until_ready(logits)
    # One of embeddings, and three of each layer.
    assert len(masks) == 1 + 3 * 3
    of_size_D = [mask.tobytes() for mask in masks if mask.shape[-1] == model.d_model]
    assert len(set(of_size_D)) == len(of_size_D) >= 1 + 3 * 2


@pytest.mark.slow
def test_scanned_layers_have_the_same_initial_parameters():
    (separate, _), (scanned, _) = separate_and_scanned(architecture='decoder_only')
    key = jax.random.key(5)
    expected = jax.jit(lambda: init_variables(separate, key))()
    found = jax.jit(lambda: init_variables(scanned, key))()
    tiny.assert_equal(found, stack_layers(expected))
    tiny.assert_equal(unstack_layers(found), expected)


def gradient_jaxpr(num_layers):
    model = tiny.model(scan_layers=True, num_layers=num_layers, layer_drop=0.1)
    variables = jax.eval_shape(lambda: init_variables(model, jax.random.key(0)))
    step = functools.partial(loss_and_grads, model, dropout_key=jax.random.key(1))
    return jax.make_jaxpr(step)(variables, tiny.pairs_batch()).jaxpr


@pytest.mark.ci
def test_program_of_a_step_does_not_grow_with_depth():
    two, six = gradient_jaxpr(2), gradient_jaxpr(6)
    assert str(two).count(' = ') == str(six).count(' = ')

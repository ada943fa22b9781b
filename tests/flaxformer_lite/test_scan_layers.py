"""Tests that a loop over layers equals separate layers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import tiny
from flax import linen as nn
from tiny import apply

from flaxformer_lite.attention.softmax import SoftmaxAttention
from flaxformer_lite.layer_scope import layer_index
from flaxformer_lite.layers.dropout import Dropout
from flaxformer_lite.layers.scanned_stack import stack_layers, unstack_layers
from flaxformer_lite.training.batch import source_and_inputs
from flaxformer_lite.training.loss import loss_and_grads
from flaxformer_lite.training.train_step import init_variables


def batch():
    return tiny.batch([*([p] for p in tiny.PAIRS), tiny.PAIRS, []])


@functools.cache
def both(**overrides):
    separate = tiny.model(**overrides)
    variables = tiny.all_variables(separate)
    scanned = tiny.model(scan_layers=True, **overrides)
    return (separate, variables), (scanned, stacked(variables, scanned))


def stacked(variables, model):
    return stack_layers(variables, model.layer_periods)


def close(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        x, y = np.float64(x), np.float64(y)
        finite = y[np.isfinite(y)]
        scale = max(1.0, float(np.abs(finite).max(initial=0)))
        np.testing.assert_allclose(x, y, rtol=0, atol=2e-6 * scale)


# Of a period of two layers only the second writes running statistics and losses.
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


def test_loss_gradients_and_statistics_are_those_of_separate_layers():
    def step(model, variables):
        step = functools.partial(loss_and_grads, model, dropout_key=jax.random.key(1))
        return jax.jit(step)(variables, batch())

    separate, scanned = both(**PATTERN)
    expected, expected_stats = step(*separate)
    found, found_stats = step(*scanned)
    model, variables = scanned
    gradients = stacked(expected.gradients, model)
    close(found, expected._replace(gradients=gradients))
    close(found_stats, stacked(expected_stats, model))
    again, _ = step(model.with_remat('blocks'), variables)
    close(again, found)


class Numbered(SoftmaxAttention):
    """A stub whose heads are the number of their layer."""

    def transform_heads(self, y_BTHU, x_BTD, dense):
        return jnp.zeros_like(y_BTHU) + layer_index()


def test_layers_know_their_number_in_their_stack():
    # With a pattern of two norms, the scan runs two layers in each iteration.
    # The heads ignore the source, so only the decoder's numbers reach the logits.
    fields = dict(num_layers=2, decoder__num_layers=4, attention=Numbered)
    fields['norm'] = '[layer, rms]'
    (model, variables), scanned = both(**fields)
    heads = tiny.record(model, variables, batch()).heads
    assert {name: len(layers) for name, layers in heads.items()} == {
        'encoder': 2,
        'decoder': 4,
        'decoder cross': 4,
    }
    for layers in heads.values():
        for i, x_BTHU in enumerate(layers):
            np.testing.assert_array_equal(x_BTHU, np.full(x_BTHU.shape, i))
    arguments = source_and_inputs(batch())
    close(apply(*scanned, *arguments), apply(model, variables, *arguments))


def test_each_layer_of_a_loop_has_its_own_dropout():
    _, (model, variables) = both(num_layers=3, dropout=0.5)
    source_BS = inputs_BT = np.full((2, 5), 3, np.int32)
    masks = []

    def seen(y):
        masks.append(np.asarray(y) == 0)
        return y

    def record(next_fun, args, kwargs, context):
        y = next_fun(*args, **kwargs)
        if isinstance(context.module, Dropout) and y.ndim == 3:
            return jax.pure_callback(seen, jax.ShapeDtypeStruct(y.shape, y.dtype), y)
        return y

    with nn.intercept_methods(record):
        rngs = {'dropout': jax.random.key(0)}
        logits = model.apply(variables, source_BS, inputs_BT, rngs=rngs)
    jax.block_until_ready(logits)
    # Two of embeddings, three of each encoder layer and four of each decoder layer.
    assert len(masks) == 2 + 3 * (3 + 4)
    of_size_D = [mask.tobytes() for mask in masks if mask.shape[-1] == model.d_model]
    assert len(set(of_size_D)) == len(of_size_D)


def test_the_first_parameters_are_the_same():
    (separate, _), (scanned, _) = both(architecture='decoder_only')
    key = jax.random.key(5)
    expected = jax.jit(lambda: init_variables(separate, key))()
    found = jax.jit(lambda: init_variables(scanned, key))()
    jax.tree.map(np.testing.assert_array_equal, found, stack_layers(expected))
    jax.tree.map(np.testing.assert_array_equal, unstack_layers(found), expected)


def gradient_jaxpr(num_layers):
    model = tiny.model(scan_layers=True, num_layers=num_layers, layer_drop=0.1)
    variables = jax.eval_shape(lambda: init_variables(model, jax.random.key(0)))
    step = functools.partial(loss_and_grads, model, dropout_key=jax.random.key(1))
    return jax.make_jaxpr(step)(variables, batch()).jaxpr


def test_the_program_of_a_step_does_not_grow_with_depth():
    two, six = gradient_jaxpr(2), gradient_jaxpr(6)
    assert str(two).count(' = ') == str(six).count(' = ')

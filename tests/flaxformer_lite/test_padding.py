"""Tests that batch norm and mixtures of experts ignore padding.

Stacks pass the mask through `masks.padding_known`; test_masks covers that context.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import linen as nn
from tiny import slow

from flaxformer_lite.decoding import Greedy
from flaxformer_lite.generation import generate
from flaxformer_lite.layers.blocks.base import Block
from flaxformer_lite.masks import padding_known, padding_mask
from flaxformer_lite.training.loss import loss_and_grads

# Components that compute across tokens.
ACROSS_TOKENS = dict(norm='batch(momentum=0.0)', feed_forward='mixture', dropout=0.0)
DECODER = dict(num_layers=2, architecture='decoder_only')
# Other pairs, in which other tokens of the same array are padding.
OTHER_PAIRS = [
    ([7, 1], [3, 1]),
    ([5, 6, 4, 1], [9, 10, 1]),
    ([11, 3, 8, 1], [12, 11, 5, 1]),
]


@functools.cache
def opened():
    # The second layer runs the trace of the first.
    model = tiny.model(**ACROSS_TOKENS | DECODER)
    return model, tiny.all_variables(model)


def padded(rows, shape=(5, 9)):
    """Returns the same pairs in larger arrays, filled with padding."""

    def pad(x):
        sizes = zip(x.shape, shape, strict=True)
        return jnp.pad(x, [(0, new - old) for old, new in sizes])

    return jax.tree.map(pad, rows)


def learn(rows):
    return loss_and_grads(*opened(), rows, dropout_key=jax.random.key(1))


def compiled():
    """Compiles a new function each time, since JAX caches programs by function."""
    return jax.jit(lambda rows: learn(rows))


def assert_same(found, expected):
    (found_output, found_stats), (output, stats) = found, expected
    tiny.assert_close(found_stats, stats, rtol=1e-5, atol=1e-6)
    tiny.assert_close(found_output.aux_metrics, output.aux_metrics, 1e-6, 1e-5)
    np.testing.assert_allclose(found_output.sums.loss, output.sums.loss, rtol=1e-5)
    scale = max(np.abs(g).max() for g in jax.tree.leaves(output.gradients))
    tiny.assert_close(found_output.gradients, output.gradients, atol=1e-4 * scale)


@pytest.mark.slow
def test_shared_trace_uses_the_padding_of_each_batch():
    traces = []

    @jax.jit
    def counted(rows):
        traces.append(rows)
        return learn(rows)

    rows, others = tiny.pairs_batch(), tiny.batch([[pair] for pair in OTHER_PAIRS])
    expected, of_others = compiled()(rows), compiled()(others)
    wrong_BT = padded(rows)['source'] == 0
    with padding_known(wrong_BT):
        assert_same(counted(padded(rows)), expected)
        np.testing.assert_array_equal(padding_mask(wrong_BT.shape), wrong_BT)
    assert_same(counted(padded(others)), of_others)
    # Arrays of another shape are traced again.
    assert_same(counted(padded(rows, (4, 8))), expected)
    assert len(traces) == 2


RIGHT = [[5, 6, 7, 1, 0, 0], [8, 1, 0, 0, 0, 0]]
LEFT = [[0, 0, 5, 6, 7, 1], [0, 0, 0, 0, 8, 1]]
BETWEEN = [[5, 0, 6, 7, 0, 1], [0, 8, 0, 0, 1, 0]]


@pytest.mark.ci
@pytest.mark.parametrize(
    'settings',
    [
        dict(continuous_positions=True, positions='learned(max_length=12)'),
        *(
            slow(settings)
            for settings in (
                dict(),
                dict(architecture='prefix_lm', positions='shaw'),
                dict(merged_attention=True, positions='t5'),
                dict(architecture='decoder_only', positions='rotary'),
                dict(architecture='recurrent'),
            )
        ),
    ],
    ids=str,
)
def test_padding_of_a_source_may_be_anywhere(settings):
    model = tiny.model(num_layers=1, **settings)
    variables = tiny.all_variables(model)
    inputs = jnp.array([[2, 9, 8], [2, 4, 0]])

    def results(source):
        source = jnp.array(source, jnp.int32)
        logits = tiny.apply(model, variables, source, inputs)
        return logits, generate(model, variables, source, Greedy(), max_length=5)

    expected = results(RIGHT)
    for source in (LEFT, BETWEEN):
        tiny.assert_close(results(source), expected, atol=1e-4)


class FeedForwardAlone(Block):
    @nn.compact
    def __call__(self, x_BTD, context, encoder_kv=None, cache=None, beam=None):
        residual = self.residual.copy(name='residual_1')
        h_BTD = residual.before(x_BTD)
        x_BTD = residual.after(x_BTD, self.feed_forward(h_BTD))
        return x_BTD, self.keep(h_BTD, context.positions_BT)


@pytest.mark.ci
@pytest.mark.parametrize('scan_layers', [False, slow(True)])
def test_users_block_ignores_padding(scan_layers):
    block = 'test_padding.FeedForwardAlone'
    settings = dict(block=block, scan_layers=scan_layers)
    model = tiny.model(**ACROSS_TOKENS | settings | DECODER)
    variables = tiny.all_variables(model)

    @jax.jit
    def learned(rows):
        return loss_and_grads(model, variables, rows, dropout_key=jax.random.key(1))

    rows = tiny.pairs_batch()
    assert_same(learned(padded(rows)), learned(rows))


def test_padding_is_forgotten_after_a_call_and_after_an_error():
    rows = padded(tiny.pairs_batch())
    jax.eval_shape(learn, rows)
    shape = rows['source'].shape
    np.testing.assert_array_equal(padding_mask(shape), np.ones(shape, bool))
    # Source and target have different numbers of rows.
    uneven = rows | {name: x[:2] for name, x in rows.items() if 'source' in name}
    with pytest.raises((TypeError, ValueError)):
        jax.eval_shape(learn, uneven)
    np.testing.assert_array_equal(padding_mask(shape), np.ones(shape, bool))

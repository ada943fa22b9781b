"""Tests that batch norm and mixtures of experts ignore padding.

Stacks pass the mask through `masks.padding_known`; test_masks covers that scope.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import linen as nn

from flaxformer_lite.generation import generate
from flaxformer_lite.layers.blocks.base import Block
from flaxformer_lite.masks import padding_known, padding_mask
from flaxformer_lite.training.batch import make_batch
from flaxformer_lite.training.loss import loss_and_grads

ACROSS_TOKENS = dict(norm='batch(momentum=0.0)', feed_forward='mixture', dropout=0.0)
# Other pairs, in which other tokens of the same array are padding.
OTHER_PAIRS = [
    ([7, 1], [3, 1]),
    ([5, 6, 4, 1], [9, 10, 1]),
    ([11, 3, 8, 1], [12, 11, 5, 1]),
]


@functools.cache
def made():
    # The second layer runs what was traced for the first.
    model = tiny.model(num_layers=2, **ACROSS_TOKENS)
    return model, tiny.all_variables(model)


def rows_of(pairs):
    return tiny.batch([[pair] for pair in pairs])


def widened(rows, shape=(5, 9)):
    """Returns the same pairs in larger arrays, filled with padding."""

    def pad(x):
        return jnp.pad(
            x, [(0, new - old) for old, new in zip(x.shape, shape, strict=True)]
        )

    return jax.tree.map(pad, rows)


def learn(rows):
    return loss_and_grads(*made(), rows, dropout_key=jax.random.key(1))


def compiled():
    """Compiles a new function each time, since JAX caches programs by function."""
    return jax.jit(lambda rows: learn(rows))


def assert_same(found, expected):
    (found_output, found_stats), (output, stats) = found, expected
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, found_stats, stats)
    jax.tree.map(close, found_output.aux_metrics, output.aux_metrics)
    np.testing.assert_allclose(found_output.sums.loss, output.sums.loss, rtol=1e-5)
    scale = max(np.abs(g).max() for g in jax.tree.leaves(output.gradients))
    close = functools.partial(np.testing.assert_allclose, atol=1e-4 * scale)
    jax.tree.map(close, found_output.gradients, output.gradients)


@functools.cache
def expected(number):
    pairs = (tiny.PAIRS, OTHER_PAIRS)[number]
    return compiled()(rows_of(pairs))


@pytest.mark.slow
def test_what_was_traced_once_asks_each_batch_for_its_own_padding():
    traces = []

    @jax.jit
    def counted(rows):
        traces.append(rows)
        return learn(rows)

    rows = widened(rows_of(tiny.PAIRS))
    wrong_BT = rows['source'] == 0
    with padding_known(wrong_BT):
        assert_same(counted(rows), expected(0))
        np.testing.assert_array_equal(padding_mask(wrong_BT.shape), wrong_BT)
    assert_same(counted(widened(rows_of(OTHER_PAIRS))), expected(1))
    # And where it is traced again, for arrays of another shape.
    assert_same(counted(widened(rows_of(tiny.PAIRS), (4, 8))), expected(0))
    assert len(traces) == 2


RIGHT = [[5, 6, 7, 1, 0, 0], [8, 1, 0, 0, 0, 0]]
ELSEWHERE = {
    'left': [[0, 0, 5, 6, 7, 1], [0, 0, 0, 0, 8, 1]],
    'gaps': [[5, 0, 6, 7, 0, 1], [0, 8, 0, 0, 1, 0]],
}


@pytest.mark.parametrize(
    'settings',
    [
        dict(),
        dict(continuous_positions=True, positions='learned(max_length=12)'),
        dict(merged_attention=True, positions='t5'),
        dict(architecture='prefix_lm', positions='shaw'),
        pytest.param(
            dict(architecture='decoder_only', positions='rotary'),
            marks=pytest.mark.slow,
        ),
        pytest.param(dict(architecture='recurrent'), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_padding_of_a_source_may_be_anywhere(settings):
    model = tiny.model(num_layers=1, **settings)
    variables = tiny.all_variables(model)
    inputs = jnp.array([[2, 9, 8], [2, 4, 0]])

    def computed(source):
        source = jnp.array(source, jnp.int32)
        logits = tiny.apply(model, variables, source, inputs)
        return logits, generate(model, variables, source, 'greedy', max_length=5)

    expected = computed(RIGHT)
    for source in ELSEWHERE.values():
        close = functools.partial(np.testing.assert_allclose, atol=1e-4)
        jax.tree.map(close, computed(source), expected)


@pytest.mark.parametrize('target', [[[0, 5, 1]], [[5, 0, 1]]], ids=str)
def test_padding_before_a_token_of_a_target_is_refused(target):
    target = np.array([[5, 1, 0], *target])
    with pytest.raises(ValueError, match='target, row 1: padding comes before a token'):
        make_batch(np.array([[4, 1], [0, 1]]), target)


class FeedForwardAlone(Block):
    @nn.compact
    def __call__(self, x_BTD, context, encoder_kv=None, cache=None, beam=None):
        residual = self.residual.copy(name='residual_1')
        h_BTD = residual.before(x_BTD)
        x_BTD = residual.after(x_BTD, self.feed_forward(h_BTD))
        return x_BTD, self.keep(h_BTD, context.positions_BT)


@pytest.mark.parametrize(
    'scan_layers', [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_a_block_of_ones_own_counts_no_padding(scan_layers):
    block = 'test_padding.FeedForwardAlone'
    settings = dict(num_layers=2, block=block, scan_layers=scan_layers)
    model = tiny.model(**ACROSS_TOKENS | settings)
    variables = tiny.all_variables(model)

    @jax.jit
    def learned(rows):
        return loss_and_grads(model, variables, rows, dropout_key=jax.random.key(1))

    rows = rows_of(tiny.PAIRS)
    assert_same(learned(widened(rows)), learned(rows))


def test_a_model_leaves_nothing_of_its_padding_behind():
    rows = widened(rows_of(tiny.PAIRS))
    compiled()(rows)
    shape = rows['source'].shape
    np.testing.assert_array_equal(padding_mask(shape), np.ones(shape, bool))
    # Nor where it fails half way: the rows of the two sides are not as many.
    uneven = rows | {name: x[:2] for name, x in rows.items() if 'source' in name}
    with pytest.raises((TypeError, ValueError)):
        compiled()(uneven)
    np.testing.assert_array_equal(padding_mask(shape), np.ones(shape, bool))

"""Tests of dropout of elements, tokens, heads and layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import traverse_util
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from flaxformer_lite.layers.dropout import Dropout

ONES = jnp.ones((40, 50, 30))


def drop(rate, x=ONES, seed=0):
    rngs = {'dropout': jax.random.key(seed)}
    return np.asarray(tiny.apply(Dropout(rate), {}, x, rngs=rngs))


@pytest.mark.parametrize('rate', [0.1, 0.3, 0.9])
def test_zeroes_at_its_rate_and_scales_what_is_left(rate):
    y = drop(rate)
    np.testing.assert_allclose(y[y != 0], 1 / (1 - rate), rtol=1e-6)
    sigma = np.sqrt(rate * (1 - rate) / y.size)
    assert abs((y == 0).mean() - rate) < 5 * sigma


def test_is_on_exactly_when_a_key_is_given():
    np.testing.assert_array_equal(Dropout(0.5).apply({}, ONES), ONES)
    np.testing.assert_array_equal(drop(0.0), ONES)
    assert (drop(0.5) != ONES).any()


@pytest.mark.parametrize('axis', [0, 1, 2])
def test_no_two_rows_tokens_or_features_share_a_mask(axis):
    masks = np.moveaxis(drop(0.5), axis, 0).reshape(ONES.shape[axis], -1) == 0
    agree = (masks[:, None] == masks[None]).mean(-1)[~np.eye(len(masks), dtype=bool)]
    # Two fair coins agree half the time; 6 σ for some 2,000 pairs of masks.
    assert np.abs(agree - 0.5).max() < 6 * 0.5 / np.sqrt(masks.shape[1])


def test_a_mask_is_the_same_on_one_device_and_on_several():
    mesh = Mesh(np.array(jax.devices()), 'd')
    sharded = jax.device_put(ONES, NamedSharding(mesh, PartitionSpec('d')))
    np.testing.assert_array_equal(drop(0.5, sharded), drop(0.5))


def test_falls_on_embeddings_and_sublayers_each_with_a_mask_of_its_own():
    model = tiny.model(dropout=0.5)
    batch = tiny.batch([[pair] for pair in tiny.PAIRS])

    def drops(module, method):
        return isinstance(module, Dropout) and module.rate

    p, rngs = {'params': tiny.parameters(model)}, {'dropout': jax.random.key(0)}
    _, found = model.apply(
        p,
        batch['source'],
        batch['inputs'],
        rngs=rngs,
        capture_intermediates=drops,
        mutable=True,
    )
    found = traverse_util.flatten_dict(found['intermediates'])
    masks = [
        np.asarray(y) == 0
        for path, ys in found.items()
        if path[-1] == '__call__'
        for y in ys
    ]
    # Two embeddings, and 2 or 3 sublayers a layer: not attention weights, nor the
    # ReLU's output.
    assert len(masks) == 2 + 2 * (2 + 3)
    assert {m.shape[-1] for m in masks} == {12}
    for i, first in enumerate(masks):
        for second in masks[:i]:
            assert first.shape != second.shape or (first != second).any()


@pytest.mark.parametrize(
    'overrides',
    [
        dict(dropout=0.5, dropout_kind='tokens'),
        dict(head_dropout=0.5),
        dict(layer_drop=0.5),
    ],
)
def test_every_kind_is_on_with_a_key_alone(overrides):
    model = tiny.model(**dict(dropout=0.0, num_layers=1) | overrides)
    batch = tiny.batch([[pair] for pair in tiny.PAIRS])
    p = {'params': tiny.parameters(model)}

    def run(**rngs):
        logits = tiny.apply(model, p, batch['source'], batch['inputs'], **rngs)
        return np.asarray(logits)

    runs = [run(rngs={'dropout': jax.random.key(i)}) for i in range(4)]
    assert any((r != run()).any() for r in runs)
    np.testing.assert_array_equal(run(), run())

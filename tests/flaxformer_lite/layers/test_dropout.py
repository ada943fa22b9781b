"""Tests of dropout of elements, tokens, heads and layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import traverse_util
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tiny import slow

from flaxformer_lite.layers.dropout import Dropout

ONES = jnp.ones((40, 50, 30))


def drop(rate, x=ONES):
    rngs = {'dropout': jax.random.key(0)}
    return np.asarray(tiny.apply(Dropout(rate), {}, x, rngs=rngs))


@pytest.mark.parametrize('rate', [0.1, 0.9])
def test_dropout_zeroes_at_its_rate_and_scales_other_elements(rate):
    y = drop(rate)
    np.testing.assert_allclose(y[y != 0], 1 / (1 - rate), rtol=1e-6)
    sigma = np.sqrt(rate * (1 - rate) / y.size)
    assert abs((y == 0).mean() - rate) < 5 * sigma


def test_dropout_needs_a_key():
    np.testing.assert_array_equal(Dropout(0.5).apply({}, ONES), ONES)
    np.testing.assert_array_equal(drop(0.0), ONES)
    assert (drop(0.5) != ONES).any()


@pytest.mark.parametrize('axis', [0, 1, 2])
def test_masks_of_rows_tokens_and_features_are_independent(axis):
    masks = np.moveaxis(drop(0.5), axis, 0).reshape(ONES.shape[axis], -1) == 0
    agree = (masks[:, None] == masks[None]).mean(-1)[~np.eye(len(masks), dtype=bool)]
    # Two fair coins agree half the time; 6 σ for some 2,000 pairs of masks.
    assert np.abs(agree - 0.5).max() < 6 * 0.5 / np.sqrt(masks.shape[1])


def test_mask_is_the_same_on_one_device_and_on_several():
    mesh = Mesh(np.array(jax.devices()), 'd')
    sharded = jax.device_put(ONES, NamedSharding(mesh, PartitionSpec('d')))
    np.testing.assert_array_equal(drop(0.5, sharded), drop(0.5))


@pytest.mark.ci
def test_embeddings_and_sublayers_have_different_masks():
    model = tiny.model(dropout=0.5, num_layers=1)
    batch = tiny.pairs_batch()

    def drops(module, method):
        return isinstance(module, Dropout) and module.rate

    @jax.jit
    def captured(p, key):
        options = dict(capture_intermediates=drops, mutable=True)
        arguments = p, batch['source'], batch['inputs']
        return model.apply(*arguments, rngs={'dropout': key}, **options)[1]

    p = {'params': tiny.parameters(model)}
    found = captured(p, jax.random.key(0))['intermediates']
    masks = [
        np.asarray(y) == 0
        for path, ys in traverse_util.flatten_dict(found).items()
        if path[-1] == '__call__'
        for y in ys
    ]
    # Two embeddings, and 2 or 3 sublayers per layer, without masks of attention
    # weights and the activations of feed-forward networks.
    assert len(masks) == 2 + 2 + 3
    assert {m.shape[-1] for m in masks} == {12}
    for i, first in enumerate(masks):
        for second in masks[:i]:
            assert first.shape != second.shape or (first != second).any()


@pytest.mark.ci
@pytest.mark.parametrize(
    'overrides',
    [
        dict(layer_drop=0.5),
        slow(dict(dropout=0.5, dropout_kind='tokens')),
        slow(dict(head_dropout=0.5)),
    ],
    ids=str,
)
def test_every_kind_of_dropout_needs_a_key(overrides):
    fields = dict(dropout=0.0, num_layers=1, architecture='decoder_only')
    model = tiny.model(**fields | overrides)
    batch = tiny.pairs_batch()
    p = {'params': tiny.parameters(model)}

    def run(**rngs):
        logits = tiny.apply(model, p, batch['source'], batch['inputs'], **rngs)
        return np.asarray(logits)

    runs = [run(rngs={'dropout': jax.random.key(i)}) for i in range(4)]
    assert any((r != run()).any() for r in runs)
    np.testing.assert_array_equal(run(), run())

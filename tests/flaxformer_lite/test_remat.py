"""Tests of gradient checkpointing."""

import jax
import jax.numpy as jnp
import tiny
from jax._src.ad_checkpoint import saved_residuals

from flaxformer_lite import remat
from flaxformer_lite.training.batch import BATCH_ARRAYS
from flaxformer_lite.training.loss import loss_sums
from flaxformer_lite.training.train_step import init_variables

CHOICES = [remat.NONE, remat.BLOCKS, *remat.POLICIES]


def batch():
    pair = [4, 5, 1], [4, 5, 6, 7, 8, 1]
    return tiny.batch([*([p] for p in tiny.PAIRS), tiny.PAIRS, [], [pair]])


def kept_bytes(choice, **overrides):
    model = tiny.model(**overrides).with_remat(choice)
    variables = jax.eval_shape(lambda: init_variables(model, jax.random.key(0)))
    batch = dict.fromkeys(BATCH_ARRAYS, jax.ShapeDtypeStruct((8, 8), jnp.int32))
    key = jax.eval_shape(jax.random.key, 0)

    def loss(variables, batch, key):
        return loss_sums(model, variables, batch, dropout_key=key).loss

    kept = saved_residuals(loss, variables, batch, key)
    # A policy keeps no scalars, such as the constants of norms; without one they stay.
    arrays = [x for x, of in kept if x.shape and 'argument' not in of]
    return sum(x.size * x.dtype.itemsize for x in arrays)


def test_what_is_kept_grows_with_the_policy():
    sizes = {'num_layers': 1, 'architecture': 'decoder_only'}
    kept = {choice: kept_bytes(choice, **sizes) for choice in CHOICES}
    _, no_products_of_pairs, products, everything = remat.POLICIES
    assert kept['blocks'] == kept['nothing_saveable'] < kept[no_products_of_pairs]
    assert kept[no_products_of_pairs] < kept[products] < kept['none']
    assert kept[everything] == kept['none']


def test_each_layer_keeps_its_input_alone():
    def kept(num_layers):
        sizes = {'num_layers': num_layers, 'architecture': 'decoder_only'}
        return kept_bytes('blocks', **sizes)

    # Of a row and a position of a source and of a target, float32.
    stream = 2 * 64 * tiny.SIZES['d_model'] * 4
    assert kept(3) - kept(2) == kept(2) - kept(1) == stream

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


def stored_bytes(choice, num_layers=1):
    """Returns the bytes of activations that a gradient stores."""
    sizes = dict(num_layers=num_layers, architecture='decoder_only')
    model = tiny.model(**sizes).with_remat(choice)
    variables = jax.eval_shape(lambda: init_variables(model, jax.random.key(0)))
    batch = dict.fromkeys(BATCH_ARRAYS, jax.ShapeDtypeStruct((8, 8), jnp.int32))
    key = jax.eval_shape(jax.random.key, 0)

    def loss(variables, batch, key):
        return loss_sums(model, variables, batch, dropout_key=key).loss

    residuals = saved_residuals(loss, variables, batch, key)
    # Policies drop scalars, such as the constants of norms; without one they stay.
    arrays = [x for x, source in residuals if x.shape and 'argument' not in source]
    return sum(x.size * x.dtype.itemsize for x in arrays)


def test_stored_activations_grow_with_the_policy():
    stored = {choice: stored_bytes(choice) for choice in CHOICES}
    _, no_products_of_pairs, products, everything = remat.POLICIES
    assert stored['blocks'] == stored['nothing_saveable'] < stored[no_products_of_pairs]
    assert stored[no_products_of_pairs] < stored[products] < stored['none']
    assert stored[everything] == stored['none']


def test_each_rematerialized_layer_stores_only_its_input():
    one, two, three = (stored_bytes('blocks', n) for n in (1, 2, 3))
    # Of 8 rows with 8 positions of a source and of a target, float32.
    stream = 2 * 64 * tiny.SIZES['d_model'] * 4
    assert three - two == two - one == stream

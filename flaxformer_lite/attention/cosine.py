"""Cosine attention, learned temperature (Henry et al. 2020, "QK Normalization")."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.attention.base import Attention, dot_products
from flaxformer_lite.validation import Positive


def unit_vector(x: jax.Array, axis: int) -> jax.Array:
    """Returns x / ‖x‖ in float32; for x = 0, zeros with finite gradients.

    Examples:
      >>> print(unit_vector(jnp.array([3.0, 4.0]), axis=0))
      [0.6 0.8]
    """
    x = x.astype(jnp.float32)
    square = jnp.square(x).sum(axis, keepdims=True)
    return x * jax.lax.rsqrt(square + 1e-12)


class Cosine(Attention):
    """Cosine attention: softmax(g · q / ‖q‖ · k / ‖k‖), with g learned for each head.

    Source: Henry et al. 2020. Use it to bound the scores, for example if training is
    unstable.

    Attributes:
      start: Initial value of every g.

    Examples:
      >>> import flaxformer_lite as fl
      >>> attention = fl.attention.Cosine()
      >>> model = fl.Transformer(vocab_size=100, attention=attention)
    """

    per_head = True
    start: Positive = 10.0

    @nn.compact
    def scores(self, q_BTHK, kv):
        init = nn.initializers.constant(self.start)
        temperature_H = self.param('temperature', init, q_BTHK.shape[2:3])
        dtype = q_BTHK.dtype
        q_BTHK = unit_vector(q_BTHK, -1).astype(dtype)
        key_BHKS = unit_vector(kv.key_BGKS, -2).astype(dtype)
        scores_BHTS = dot_products(q_BTHK, key_BHKS)
        return scores_BHTS * temperature_H[None, :, None, None]

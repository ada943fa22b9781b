"""Cosine attention with a learned temperature (Henry et al. 2020, "Query-Key Normalization")."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.attention.base import Attention, dot
from flaxformer_lite.ranges import Positive


def unit(x: jax.Array, axis: int) -> jax.Array:
    """x / ‖x‖, and 0 of 0, with finite gradients there."""
    x = x.astype(jnp.float32)
    return x * jax.lax.rsqrt(jnp.square(x).sum(axis, keepdims=True) + 1e-12)


class Cosine(Attention):
    """softmax(g · q / ‖q‖ · k / ‖k‖), g learned for each head, `start` at first.

    Scores lie between −g and g.
    """

    per_head = True
    start: Positive = 10.0

    @nn.compact
    def scores(self, q_BTHK, kv):
        start = nn.initializers.constant(self.start)
        g_H = self.param('temperature', start, q_BTHK.shape[2:3])
        dtype = kv.key_BGKS.dtype
        cosine_BHTS = dot(
            unit(q_BTHK, -1).astype(dtype), unit(kv.key_BGKS, -2).astype(dtype)
        )
        return cosine_BHTS * g_H[None, :, None, None]

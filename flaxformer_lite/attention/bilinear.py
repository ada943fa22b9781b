"""Bilinear attention: `general` of Luong et al. (2015), with one matrix per head."""

import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.attention.base import Attention, dot_products


class Bilinear(Attention):
    """Bilinear attention: softmax(qᵀ W k / √d_k).

    W is initialized to the identity, which gives dot-product attention.

    Source: Luong et al. 2015, §3.1, `general`. Use it to test a learned product of
    queries and keys.

    Examples:
      >>> import flaxformer_lite as fl
      >>> attention = fl.attention.Bilinear()
      >>> model = fl.Transformer(vocab_size=100, attention=attention)
    """

    per_head = True

    @nn.compact
    def scores(self, q_BTHK, kv):
        num_heads, d_k = q_BTHK.shape[2:]

        def identity(key, shape):
            return jnp.broadcast_to(jnp.eye(d_k), shape)

        form_HKK = self.param('form', identity, (num_heads, d_k, d_k))
        dtype = q_BTHK.dtype
        q_BTHK = q_BTHK.astype(jnp.float32)
        q_BTHK = jnp.einsum('bthk,hkj->bthj', q_BTHK, form_HKK * d_k**-0.5)
        return dot_products(q_BTHK.astype(dtype), kv.key_BGKS)

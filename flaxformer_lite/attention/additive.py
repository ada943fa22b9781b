"""Additive attention (Bahdanau et al. 2015), with a small network per head."""

from typing import Annotated

import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.attention.base import Attention
from flaxformer_lite.validation import Range


class Additive(Attention):
    """Additive attention: softmax(vᵀ tanh(W q + U k)).

    Source: Bahdanau et al. 2015, appendix A.1.2. Use it to compare with early
    translation models. It takes more memory than dot products, because it has a hidden
    layer per query-key pair.

    Attributes:
      width: Width of the hidden layer. 0 uses d_k. Time and memory grow with it.

    Examples:
      >>> import flaxformer_lite as fl
      >>> attention = fl.attention.Additive(width=8)
      >>> model = fl.Transformer(vocab_size=100, attention=attention)
    """

    per_head = True
    width: Annotated[int, Range(at_least=0)] = 0

    @nn.compact
    def scores(self, q_BTHK, kv):
        num_heads = q_BTHK.shape[2]
        query_width = q_BTHK.shape[3]
        key_width = kv.key_BGKS.shape[2]
        query_HKA, key_HKA, energy_HA = self._parameters(
            num_heads, query_width, key_width
        )
        q_BTHK = q_BTHK.astype(jnp.float32)
        key_BHKS = kv.key_BGKS.astype(jnp.float32)
        q_BHTA = jnp.einsum('bthk,hka->bhta', q_BTHK, query_HKA)
        k_BHSA = jnp.einsum('bhks,hka->bhsa', key_BHKS, key_HKA)
        sum_BHTSA = q_BHTA[:, :, :, None] + k_BHSA[:, :, None]
        hidden_BHTSA = jnp.tanh(sum_BHTSA)
        return jnp.einsum('bhtsa,ha->bhts', hidden_BHTSA, energy_HA)

    def _parameters(self, num_heads, query_width, key_width):
        width = self.width or query_width
        matrix_init = nn.initializers.xavier_uniform(
            in_axis=1, out_axis=2, batch_axis=0
        )
        vector_init = nn.initializers.normal(width**-0.5)
        return (
            self.param('query', matrix_init, (num_heads, query_width, width)),
            self.param('key', matrix_init, (num_heads, key_width, width)),
            self.param('energy', vector_init, (num_heads, width)),
        )

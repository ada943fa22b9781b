"""Additive attention (Bahdanau et al. 2015), a small network for each head."""

from typing import Annotated

import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.attention.base import Attention
from flaxformer_lite.ranges import Range


class Additive(Attention):
    """softmax(vᵀ tanh(W q + U k)): a pair costs as much as its hidden layer is wide; 0: as d_k."""

    per_head = True
    width: Annotated[int, Range(at_least=0)] = 0

    @nn.compact
    def scores(self, q_BTHK, kv):
        heads, d_k = q_BTHK.shape[2:]
        width = self.width or d_k
        init = nn.initializers.xavier_uniform(in_axis=1, out_axis=2, batch_axis=0)
        q_HKA = self.param('query', init, (heads, d_k, width))
        k_HKA = self.param('key', init, (heads, kv.key_BGKS.shape[2], width))
        energy_HA = self.param(
            'energy', nn.initializers.normal(width**-0.5), (heads, width)
        )
        q_BHTA = jnp.einsum('bthk,hka->bhta', q_BTHK.astype(jnp.float32), q_HKA)
        k_BHSA = jnp.einsum('bhks,hka->bhsa', kv.key_BGKS.astype(jnp.float32), k_HKA)
        h_BHTSA = jnp.tanh(q_BHTA[:, :, :, None] + k_BHSA[:, :, None])
        return jnp.einsum('bhtsa,ha->bhts', h_BHTSA, energy_HA)

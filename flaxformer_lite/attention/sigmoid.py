"""Sigmoid attention (Ramapuram et al. 2024, "Theory, Analysis, and Best Practices for …")."""

import jax
import jax.numpy as jnp

from flaxformer_lite.attention.base import Attention


class Sigmoid(Attention):
    """σ(q · k / √d_k − log n), n the number of keys that a query sees: keys do not compete.

    With the bias all weights together begin near 1, as a softmax' do.
    """

    def weights(self, s_BHTS, mask_BHTS):
        n_BHT1 = jnp.maximum(mask_BHTS.sum(-1, keepdims=True), 1).astype(jnp.float32)
        return jnp.where(mask_BHTS, jax.nn.sigmoid(s_BHTS - jnp.log(n_BHT1)), 0.0)

"""Sigmoid attention (Ramapuram et al. 2024, "Theory, Analysis, and Best …")."""

import jax
import jax.numpy as jnp

from flaxformer_lite.attention.base import Attention


class Sigmoid(Attention):
    """Sigmoid attention: σ(q · k / √d_k − log n), with n the number of visible keys.

    Source: Ramapuram et al. 2024. Use it to test whether keys must compete for
    attention.

    Examples:
      >>> import flaxformer_lite as fl
      >>> attention = fl.attention.Sigmoid()
      >>> model = fl.Transformer(vocab_size=100, attention=attention)
    """

    def weights(self, scores_BHTS, mask_BHTS):
        visible_BHT1 = mask_BHTS.sum(-1, keepdims=True)
        n_BHT1 = jnp.maximum(visible_BHT1, 1).astype(jnp.float32)
        weights_BHTS = jax.nn.sigmoid(scores_BHTS - jnp.log(n_BHT1))
        return jnp.where(mask_BHTS, weights_BHTS, 0.0)

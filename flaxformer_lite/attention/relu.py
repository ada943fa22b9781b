"""ReLU attention (Wortsman et al. 2023, "Replacing softmax with ReLU in ViTs")."""

import jax
import jax.numpy as jnp

from flaxformer_lite.attention.base import Attention


class ReluAttention(Attention):
    """ReLU attention: max(0, q · k / √d_k) / n, with n the number of visible keys.

    Examples:
      >>> scores_BHTS = jnp.array([[[[-1.0, 3.0, 6.0, 9.0]]]])
      >>> mask_BHTS = jnp.array([[[[True, True, True, False]]]])
      >>> print(ReluAttention().apply({}, scores_BHTS, mask_BHTS, method='weights'))
      [[[[0. 1. 2. 0.]]]]
    """

    def weights(self, scores_BHTS, mask_BHTS):
        n_BHT1 = jnp.maximum(mask_BHTS.sum(-1, keepdims=True), 1)
        return jnp.where(mask_BHTS, jax.nn.relu(scores_BHTS), 0.0) / n_BHT1

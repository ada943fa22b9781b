"""ReLU attention (Wortsman et al. 2023, "Replacing softmax with ReLU in ViTs")."""

import jax
import jax.numpy as jnp

from flaxformer_lite.attention.base import Attention


class ReLU(Attention):
    """ReLU attention: max(0, q · k / √d_k) / n, with n the number of visible keys.

    Source: Wortsman et al. 2023. Use it to test whether weights must sum to 1.

    Examples:
      >>> import flaxformer_lite as fl
      >>> attention = fl.attention.ReLU()
      >>> model = fl.Transformer(vocab_size=100, attention=attention)
    """

    def weights(self, scores_BHTS, mask_BHTS):
        n_BHT1 = jnp.maximum(mask_BHTS.sum(-1, keepdims=True), 1)
        return jnp.where(mask_BHTS, jax.nn.relu(scores_BHTS), 0.0) / n_BHT1

"""Penalty of large normalizers (Mesh TensorFlow; Chowdhery et al. 2022, "PaLM", §5)."""

import jax
import jax.numpy as jnp

from flaxformer_lite.losses.base import Loss
from flaxformer_lite.validation import NotNegative


class ZLoss(Loss):
    """w log² Z, with Z = Σ_v exp(z_v).

    Attributes:
      weight: w.
    """

    weight: NotNegative = 1e-4

    def token_losses(self, logits_BTV, labels_BT, *more):
        return self.weight * jnp.square(jax.nn.logsumexp(logits_BTV, -1))

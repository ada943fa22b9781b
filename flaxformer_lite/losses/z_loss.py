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

    def __call__(self, logits, batch):
        return self.weight * jnp.square(jax.nn.logsumexp(logits, -1))

"""Penalty of large normalizers (Mesh TensorFlow; Chowdhery et al. 2022, "PaLM", §5)."""

import jax
import jax.numpy as jnp

from flaxformer_lite.losses.base import Loss
from flaxformer_lite.validation import NotNegative


class ZLoss(Loss):
    """w log² Z, with Z = Σ_v exp(z_v).

    Source: Chowdhery et al. 2022, §5. Add it to another loss to keep logits small, for
    example in bfloat16.

    Attributes:
      weight: w.

    Examples:
      >>> import flaxformer_lite as fl
      >>> loss = [fl.losses.CrossEntropy(), fl.losses.ZLoss(weight=1e-4)]
    """

    weight: NotNegative = 1e-4

    def __call__(self, logits, batch):
        return self.weight * jnp.square(jax.nn.logsumexp(logits, -1))

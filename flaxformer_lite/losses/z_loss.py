"""Penalty of large normalizers (Mesh TensorFlow; Chowdhery et al. 2022, "PaLM", §5)."""

import jax
import jax.numpy as jnp

from flaxformer_lite.losses.base import Loss
from flaxformer_lite.validation import NotNegative


class ZLoss(Loss):
    """w log² Z, with Z = Σ_v exp(z_v).

    Added to a cross-entropy, it keeps log Z near 0.

    Attributes:
      weight: w.

    Examples:
      >>> logits_BTV = jnp.log(jnp.array([[[1.0, 3.0]], [[0.5, 0.5]]]))
      >>> loss_BT = ZLoss(weight=1.0).token_losses(logits_BTV, jnp.zeros((2, 1), int))

      >>> print(*(f'{abs(loss):.2f}' for loss in loss_BT[:, 0]))
      1.92 0.00
    """

    weight: NotNegative = 1e-4

    def token_losses(self, logits_BTV, labels_BT, *more):
        return self.weight * jnp.square(jax.nn.logsumexp(logits_BTV, -1))

"""Focal loss (Lin et al. 2017, equation 4)."""

import jax.numpy as jnp

from flaxformer_lite.losses.base import Loss, label_log_p
from flaxformer_lite.validation import SMALLEST_FLOAT, NotNegative


class Focal(Loss):
    """−(1 − p)^γ log p, with p of the label: down-weights confident predictions.

    Attributes:
      gamma: γ; 0 gives the cross-entropy.

    Examples:
      >>> logits_BTV = jnp.log(jnp.array([[[0.9, 0.1]], [[0.5, 0.5]]]))
      >>> for gamma in (0.0, 2.0):
      ...     loss_BT = Focal(gamma).token_losses(logits_BTV, jnp.zeros((2, 1), int))
      ...     print(*(f'{loss:.3f}' for loss in loss_BT[:, 0]))
      0.105 0.693
      0.001 0.173
    """

    gamma: NotNegative = 2.0

    def token_losses(self, logits_BTV, labels_BT, *more):
        log_p_BT = label_log_p(logits_BTV, labels_BT)
        # Not 0, where a power below 1 has no finite derivative.
        rest_BT = jnp.maximum(-jnp.expm1(log_p_BT), SMALLEST_FLOAT)
        return -(rest_BT**self.gamma) * log_p_BT

"""Focal loss (Lin et al. 2017, equation 4)."""

import jax.numpy as jnp

from flaxformer_lite.losses.base import Loss, label_log_p
from flaxformer_lite.validation import SMALLEST_FLOAT, NotNegative


class Focal(Loss):
    """−(1 − p)^γ log p, with p of the label: down-weights confident predictions.

    Source: Lin et al. 2017, equation 4. Use it to weight rare and difficult tokens
    more.

    Attributes:
      gamma: γ; 0 gives the cross-entropy.

    Examples:
      >>> import flaxformer_lite as fl
      >>> loss = fl.losses.Focal(gamma=1.0)
    """

    gamma: NotNegative = 2.0

    def __call__(self, logits, batch):
        log_p_BT = label_log_p(logits, batch['labels'])
        # Not 0, where a power below 1 has no finite derivative.
        rest_BT = jnp.maximum(-jnp.expm1(log_p_BT), SMALLEST_FLOAT)
        return -(rest_BT**self.gamma) * log_p_BT

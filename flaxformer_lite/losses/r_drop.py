"""R-Drop: consistency of two dropout passes (Liang et al. 2021, equation 4)."""

import jax
import jax.numpy as jnp

from flaxformer_lite.losses.base import Loss, smoothed_cross_entropy
from flaxformer_lite.validation import NotNegative, Rate


class RDrop(Loss):
    """CE(p₁) + CE(p₂) + α / 2 (KL(p₁ ‖ p₂) + KL(p₂ ‖ p₁)), of two passes.

    The mean of the two divergences is reported as `r_drop_kl`.

    Source: Liang et al. 2021, equation 4. Use it against overfitting of small data. A
    step takes about twice as long.

    Attributes:
      weight: α.
      label_smoothing: ε of the cross-entropies.

    Examples:
      >>> import flaxformer_lite as fl
      >>> loss = fl.losses.RDrop(weight=1.0)
    """

    passes = 2
    weight: NotNegative = 5.0
    label_smoothing: Rate = 0.1

    def __call__(self, logits, batch):
        if logits.ndim != 4:
            raise ValueError(
                'RDrop needs the logits of two passes, (B, T, 2, V), not '
                f'{logits.shape}. Call sums(model, variables, batch, key).'
            )
        costs_BTP = smoothed_cross_entropy(
            logits, batch['labels'][..., None], self.label_smoothing
        )
        return costs_BTP.sum(-1) + self.weight * _divergence(logits)

    def metrics(self, logits, batch):
        return {'r_drop_kl': _divergence(logits)}


def _divergence(logits_BTPV: jax.Array) -> jax.Array:
    log_p_BTPV = jax.nn.log_softmax(logits_BTPV)
    log_ratio_BTV = log_p_BTPV[:, :, 0] - log_p_BTPV[:, :, 1]
    p_BTPV = jnp.exp(log_p_BTPV)
    difference_BTV = p_BTPV[:, :, 0] - p_BTPV[:, :, 1]
    both_BT = (difference_BTV * log_ratio_BTV).sum(-1)
    return both_BT / 2

"""Scaled dot-product attention (paper §3.2.1, equation 1)."""

from flaxformer_lite.attention.base import ScaledDotProduct


class SoftmaxAttention(ScaledDotProduct):
    """Scaled dot-product attention: softmax((Q Kᵀ scale + bias) / T) V.

    Examples:
      >>> import jax.numpy as jnp
      >>> scores_BHTS = jnp.array([[[[2.0, 1.0, 9.0]]]])
      >>> mask_BHTS = jnp.array([[[[True, True, False]]]])
      >>> attention = SoftmaxAttention(temperature=0.0)

      >>> print(attention.apply({}, scores_BHTS, mask_BHTS, method='weights'))
      [[[[1. 0. 0.]]]]
    """

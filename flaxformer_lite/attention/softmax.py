"""Scaled dot-product attention (paper §3.2.1, equation 1)."""

from flaxformer_lite.attention.base import ScaledDotProduct


class Softmax(ScaledDotProduct):
    """Scaled dot-product attention: softmax((Q Kᵀ scale + bias) / T) V."""

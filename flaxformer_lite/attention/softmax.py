"""Scaled dot-product attention (paper §3.2.1, equation 1)."""

from flaxformer_lite.attention.base import ScaledDotProduct


class Softmax(ScaledDotProduct):
    """Scaled dot-product attention: softmax((Q Kᵀ scale + bias) / T) V.

    Source: Vaswani et al. 2017, equation 1. It is the default. Use it unless memory or
    speed matters.

    Examples:
      >>> import flaxformer_lite as fl
      >>> attention = fl.attention.Softmax(dropout=0.1)
      >>> model = fl.Transformer(vocab_size=100, attention=attention)
    """

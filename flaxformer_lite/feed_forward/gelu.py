"""Feed-forward network with GELU (Hendrycks and Gimpel 2016)."""

import jax

from flaxformer_lite.feed_forward.base import FeedForward


class GELU(FeedForward):
    """GELU(x W₁ + b₁) W₂ + b₂, with GELU(x) = x Φ(x).

    Attributes:
      tanh: Whether to approximate it by x (1 + tanh(√(2 / π) (x + 0.044715 x³))) / 2.
    """

    tanh: bool = False

    def activation(self, h_BTF):
        return jax.nn.gelu(h_BTF, approximate=self.tanh)

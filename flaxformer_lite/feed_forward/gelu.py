"""Feed-forward network with GELU (Hendrycks and Gimpel 2016)."""

import jax

from flaxformer_lite.feed_forward.base import FeedForward


class GELU(FeedForward):
    """GELU(x W₁ + b₁) W₂ + b₂, with GELU(x) = x Φ(x).

    Source: Hendrycks and Gimpel 2016. Use it as in BERT and GPT.

    Attributes:
      tanh: Whether to approximate it by x (1 + tanh(√(2 / π) (x + 0.044715 x³))) / 2.

    Examples:
      >>> import flaxformer_lite as fl
      >>> feed_forward = fl.feed_forward.GELU()
      >>> model = fl.Transformer(vocab_size=100, feed_forward=feed_forward)
    """

    tanh: bool = False

    def activation(self, h_BTF):
        return jax.nn.gelu(h_BTF, approximate=self.tanh)

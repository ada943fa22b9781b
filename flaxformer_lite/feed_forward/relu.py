"""Feed-forward network with ReLU, the paper's (§3.3, equation 2)."""

from flaxformer_lite.feed_forward.base import FeedForward
from flaxformer_lite.ops.relu import relu


class ReLU(FeedForward):
    """max(0, x W₁ + b₁) W₂ + b₂.

    Source: Vaswani et al. 2017, equation 2. It is the default.

    Examples:
      >>> import flaxformer_lite as fl
      >>> feed_forward = fl.feed_forward.ReLU(dropout=0.1)
      >>> model = fl.Transformer(vocab_size=100, feed_forward=feed_forward)
    """

    def activation(self, h_BTF):
        # Rounding before ReLU gives the same result, and the residual already has the
        # dtype that W₂ takes.
        return relu(h_BTF.astype(self.dense.dtype))

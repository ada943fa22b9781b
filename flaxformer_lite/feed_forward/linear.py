"""Feed-forward network without nonlinearity: one low-rank matrix."""

from flaxformer_lite.feed_forward.base import FeedForward


class Linear(FeedForward):
    """(x W₁ + b₁) W₂ + b₂.

    Use it to test what the nonlinearity contributes.

    Examples:
      >>> import flaxformer_lite as fl
      >>> feed_forward = fl.feed_forward.Linear()
      >>> model = fl.Transformer(vocab_size=100, feed_forward=feed_forward)
    """

    def activation(self, h_BTF):
        return h_BTF

"""Feed-forward network without nonlinearity: one low-rank matrix."""

from flaxformer_lite.feed_forward.base import FeedForward


class Linear(FeedForward):
    """(x W₁ + b₁) W₂ + b₂."""

    def activation(self, h_BTF):
        return h_BTF

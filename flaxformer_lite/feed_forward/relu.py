"""The paper's feed-forward network (§3.3, equation 2)."""

import jax

from flaxformer_lite.feed_forward.base import FeedForward


class Relu(FeedForward):
    """max(0, x W₁ + b₁) W₂ + b₂."""

    def activation(self, h_BTF):
        return jax.nn.relu(h_BTF)

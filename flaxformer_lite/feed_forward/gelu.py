"""The feed-forward network with GELU (Hendrycks and Gimpel 2016)."""

import jax

from flaxformer_lite.feed_forward.base import FeedForward


class Gelu(FeedForward):
    """GELU(x W₁ + b₁) W₂ + b₂ with the exact GELU, x Φ(x)."""

    def activation(self, h_BTF):
        return jax.nn.gelu(h_BTF, approximate=False)

"""Feed-forward network with SiLU (Elfwing et al. 2018), also called Swish."""

import jax

from flaxformer_lite.feed_forward.base import FeedForward


class SiLU(FeedForward):
    """SiLU(x W₁ + b₁) W₂ + b₂, with SiLU(x) = x σ(x)."""

    def activation(self, h_BTF):
        return jax.nn.silu(h_BTF)

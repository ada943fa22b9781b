"""Feed-forward network with SiLU (Elfwing et al. 2018), also called Swish."""

import jax

from flaxformer_lite.feed_forward.base import FeedForward


class SiLU(FeedForward):
    """SiLU(x W₁ + b₁) W₂ + b₂, with SiLU(x) = x σ(x).

    Source: Elfwing et al. 2018. Use it to compare with `SwiGLU`, which adds a gate.

    Examples:
      >>> import flaxformer_lite as fl
      >>> feed_forward = fl.feed_forward.SiLU()
      >>> model = fl.Transformer(vocab_size=100, feed_forward=feed_forward)
    """

    def activation(self, h_BTF):
        return jax.nn.silu(h_BTF)

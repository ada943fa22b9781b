"""Gated feed-forward network with Swish (Shazeer 2020, equation 6)."""

import jax

from flaxformer_lite.feed_forward.base import Gated


class SwiGLU(Gated):
    """(Swish(x W) ⊙ x V) W₂.

    Source: Shazeer 2020, equation 6. Use it as in Llama. Compare at equal parameters:
    it has three matrices, so lower `d_ff` to ⅔.

    Examples:
      >>> import flaxformer_lite as fl
      >>> feed_forward = fl.feed_forward.SwiGLU()
      >>> model = fl.Transformer(vocab_size=100, feed_forward=feed_forward)
    """

    def activation(self, h_BTF):
        return jax.nn.silu(h_BTF)

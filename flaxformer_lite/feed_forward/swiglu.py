"""Gated feed-forward network with Swish (Shazeer 2020, equation 6)."""

import jax

from flaxformer_lite.feed_forward.base import Gated


class SwiGLU(Gated):
    """(Swish(x W) ⊙ x V) W₂."""

    def activation(self, h_BTF):
        return jax.nn.silu(h_BTF)

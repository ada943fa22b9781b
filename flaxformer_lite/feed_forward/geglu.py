"""The gated feed-forward network with GELU (Shazeer 2020, equation 6)."""

import jax

from flaxformer_lite.feed_forward.base import Gated


class Geglu(Gated):
    """(GELU(x W) ⊙ x V) W₂ with the exact GELU, x Φ(x)."""

    def activation(self, h_BTF):
        return jax.nn.gelu(h_BTF, approximate=False)

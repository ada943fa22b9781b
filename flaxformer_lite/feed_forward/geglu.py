"""Gated feed-forward network with GELU (Shazeer 2020, equation 6)."""

import jax

from flaxformer_lite.feed_forward.base import Gated


class GEGLU(Gated):
    """(GELU(x W) ⊙ x V) W₂, with GELU(x) = x Φ(x).

    Attributes:
      tanh: Whether to use the tanh approximation, as T5 v1.1 and Gemma do.
    """

    tanh: bool = False

    def activation(self, h_BTF):
        return jax.nn.gelu(h_BTF, approximate=self.tanh)

"""Gated feed-forward network with GELU (Shazeer 2020, equation 6)."""

import jax

from flaxformer_lite.feed_forward.base import Gated


class GEGLU(Gated):
    """(GELU(x W) ⊙ x V) W₂, with GELU(x) = x Φ(x).

    Source: Shazeer 2020, equation 6. Use it as in T5 v1.1 and Gemma. Compare at equal
    parameters: it has three matrices, so lower `d_ff` to ⅔.

    Attributes:
      tanh: Whether to use the tanh approximation, as T5 v1.1 and Gemma do.

    Examples:
      >>> import flaxformer_lite as fl
      >>> feed_forward = fl.feed_forward.GEGLU(tanh=True)
      >>> model = fl.Transformer(vocab_size=100, feed_forward=feed_forward)
    """

    tanh: bool = False

    def activation(self, h_BTF):
        return jax.nn.gelu(h_BTF, approximate=self.tanh)

"""Gated tanh network of AlgoPerf's WMT workload (Dahl et al. 2023, `glu`)."""

import jax.numpy as jnp

from flaxformer_lite.feed_forward.base import Gated


class GatedTanh(Gated):
    """(tanh(x W + b) ⊙ (x V + c)) W₂ + b₂.

    Source: Dahl et al. 2023. Use it to reproduce the WMT workload of AlgoPerf.

    Examples:
      >>> import flaxformer_lite as fl
      >>> feed_forward = fl.feed_forward.GatedTanh()
      >>> model = fl.Transformer(vocab_size=100, feed_forward=feed_forward)
    """

    bias: bool = True

    def activation(self, h_BTF):
        return jnp.tanh(h_BTF)

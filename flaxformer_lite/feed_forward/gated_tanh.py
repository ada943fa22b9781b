"""Gated tanh network of AlgoPerf's WMT workload (Dahl et al. 2023, `glu`)."""

import jax.numpy as jnp

from flaxformer_lite.feed_forward.base import Gated


class GatedTanh(Gated):
    """(tanh(x W + b) ⊙ (x V + c)) W₂ + b₂."""

    bias: bool = True

    def activation(self, h_BTF):
        return jnp.tanh(h_BTF)

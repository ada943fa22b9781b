"""The gated tanh network of AlgoPerf's WMT workload (Dahl et al. 2023, GLUTanH)."""

import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.feed_forward.base import FeedForward


class GatedTanh(FeedForward):
    """h = tanh(x W₁ + b₁); (h ⊙ (h V + c)) W₂ + b₂.

    The gate reads h, which is d_ff wide, and not x, as in the GLU variants of Shazeer
    (2020): V is d_ff × d_ff.
    """

    @nn.compact
    def __call__(self, x_BTD):
        h_BTF = jnp.tanh(self.matrix(self.width, 'up')(x_BTD))
        gate_BTF = self.matrix(self.width, 'gate')(h_BTF)
        return self.project_down(h_BTF * gate_BTF, x_BTD.shape[-1])

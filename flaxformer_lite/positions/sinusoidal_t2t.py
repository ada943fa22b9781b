"""Sinusoids as tensor2tensor, the paper's code, lays them out: sines, then cosines."""

import jax.numpy as jnp

from flaxformer_lite.positions.base import Sinusoids


class SinusoidalT2T(Sinusoids):
    """x + [sin(pos · r_0) … sin(pos · r_n), cos(pos · r_0) …]; n = d/2 − 1.

    r_i = 10000^(−i / n): the last wavelength is 2π · 10000; the paper's formula ends
    below that.
    """

    def embed(self, x_BTD, positions_BT):
        half = self.sizes.d_model // 2
        last = max(half - 1, 1)
        rates = 10000.0 ** (-jnp.arange(half, dtype=jnp.float32) / last)
        angle = self.angles(positions_BT, rates)
        sinusoids = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1)
        return x_BTD + sinusoids

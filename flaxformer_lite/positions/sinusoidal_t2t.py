"""Sinusoidal positions in the layout of tensor2tensor, the paper's code."""

import jax.numpy as jnp

from flaxformer_lite.positions.base import Sinusoids


class SinusoidalT2T(Sinusoids):
    """Sinusoids: x + [sin(pos · r_0) … sin(pos · r_n), cos(pos · r_0) …].

    r_i = 10000^(−i / n) with n = d_model / 2 − 1. The last wavelength is 2π · 10000.

    Use it to compare with models of tensor2tensor.

    Examples:
      >>> import flaxformer_lite as fl
      >>> positions = fl.positions.SinusoidalT2T()
      >>> model = fl.Transformer(vocab_size=100, positions=positions)
    """

    def embed(self, x_BTD, positions_BT):
        half = self.sizes.d_model // 2
        last = max(half - 1, 1)
        rates = 10000.0 ** (-jnp.arange(half, dtype=jnp.float32) / last)
        angle = self.angles(positions_BT, rates)
        sinusoids = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1)
        return x_BTD + sinusoids

"""Sinusoids as tensor2tensor, the paper's code, lays them out: sines, then cosines."""

import jax.numpy as jnp

from flaxformer_lite.positions.base import Positions


class SinusoidalT2T(Positions):
    """x + [sin(pos · r_0) … sin(pos · r_n), cos(pos · r_0) … cos(pos · r_n)], n = d/2 − 1.

    r_i = 10000^(−i / n): the last wavelength is 2π · 10000, where the paper's formula ends before.

    Raises:
      ValueError: d_model is odd or below 4.
    """

    d_model: int

    def __post_init__(self):
        if self.d_model % 2 or self.d_model < 4:
            raise ValueError(f'd_model must be even and at least 4, not {self.d_model}')
        super().__post_init__()

    def embed(self, x_BTD, pos_BT):
        last = self.d_model // 2 - 1
        rate = 10000.0 ** (-jnp.arange(last + 1, dtype=jnp.float32) / last)
        angle = pos_BT[:, :, None].astype(jnp.float32) * rate[None, None]
        return x_BTD + jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1)

"""Rotary positions (Su et al. 2021, "RoFormer", equation 15)."""

from typing import Annotated

import jax.numpy as jnp

from flaxformer_lite.positions.base import Positions
from flaxformer_lite.ranges import Range, Size


class Rotary(Positions):
    """Features 2i and 2i + 1 of a query or key at pos turn by pos · max_wavelength^(−2i / d_k).

    The product of a query and a key then depends on their distance alone.

    Raises:
      ValueError: d_k is odd.
    """

    d_k: Size
    max_wavelength: Annotated[float, Range(at_least=1)] = 10000.0

    def __post_init__(self):
        if self.d_k % 2:
            raise ValueError(f'd_k must be even for rotary positions, not {self.d_k}')
        super().__post_init__()

    def rotate(self, x_BTHK, pos_BT):
        rate = self.max_wavelength ** (
            -jnp.arange(0, self.d_k, 2, dtype=jnp.float32) / self.d_k
        )
        angle = pos_BT[:, :, None, None].astype(jnp.float32) * rate[None, None, None]
        sin, cos = jnp.sin(angle), jnp.cos(angle)
        even, odd = x_BTHK[..., 0::2], x_BTHK[..., 1::2]
        turned = jnp.stack([even * cos - odd * sin, even * sin + odd * cos], -1)
        return turned.reshape(x_BTHK.shape)

"""Sinusoids added to the embeddings (paper §3.5)."""

import jax.numpy as jnp

from flaxformer_lite.positions.base import Positions
from flaxformer_lite.ranges import Size


class Sinusoidal(Positions):
    """x + PE: PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) its cosine.

    Raises:
      ValueError: d_model is odd, so that a sine would have no cosine.
    """

    d_model: Size

    def __post_init__(self):
        if self.d_model % 2:
            raise ValueError(f'd_model must be even for sinusoids, not {self.d_model}')
        super().__post_init__()

    def embed(self, x_BTD, pos_BT):
        rate = 10000.0 ** (
            -jnp.arange(0, self.d_model, 2, dtype=jnp.float32) / self.d_model
        )
        angle = pos_BT[:, :, None].astype(jnp.float32) * rate[None, None]
        return x_BTD + jnp.stack([jnp.sin(angle), jnp.cos(angle)], -1).reshape(
            x_BTD.shape
        )

"""Sinusoids added to the embeddings (paper §3.5)."""

import jax.numpy as jnp

from flaxformer_lite.positions.base import Positions


class Sinusoidal(Positions):
    """x + PE: PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) = cos(…).

    Raises:
      ValueError: d_model is odd, so that a sine would have no cosine.
    """

    def __post_init__(self):
        if self.sizes.d_model % 2:
            raise ValueError(
                f'd_model must be even for sinusoids, not {self.sizes.d_model}'
            )
        super().__post_init__()

    def embed(self, x_BTD, positions_BT):
        d_model = self.sizes.d_model
        rate = 10000.0 ** (-jnp.arange(0, d_model, 2, dtype=jnp.float32) / d_model)
        angle = positions_BT[:, :, None].astype(jnp.float32) * rate[None, None]
        sinusoids = jnp.stack([jnp.sin(angle), jnp.cos(angle)], -1)
        return x_BTD + sinusoids.reshape(x_BTD.shape)

"""Sinusoids added to the embeddings (paper §3.5)."""

import jax.numpy as jnp

from flaxformer_lite.positions.base import Sinusoids, sinusoid_rates


class Sinusoidal(Sinusoids):
    """x + PE: PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) = cos(…).

    Attributes:
      interleaved: False for all sines, then all cosines, as Marian has them.
    """

    interleaved: bool = True

    def embed(self, x_BTD, positions_BT):
        rates = sinusoid_rates(self.sizes.d_model)
        angle = self.angles(positions_BT, rates)
        sin = jnp.sin(angle)
        cos = jnp.cos(angle)
        if not self.interleaved:
            return x_BTD + jnp.concatenate([sin, cos], -1)
        sinusoids = jnp.stack([sin, cos], -1)
        return x_BTD + sinusoids.reshape(x_BTD.shape)

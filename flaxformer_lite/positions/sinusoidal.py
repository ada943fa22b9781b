"""Sinusoidal positions (paper §3.5)."""

import jax.numpy as jnp

from flaxformer_lite.positions.base import Sinusoids, sinusoid_rates


class Sinusoidal(Sinusoids):
    """Sinusoids added to embeddings: x + PE.

    PE(pos, 2i) = sin(pos / 10000^(2i / d_model)) and PE(pos, 2i + 1) = cos(…).

    Source: Vaswani et al. 2017, §3.5. It is the default.

    Attributes:
      interleaved: Whether sines and cosines alternate. False puts sines first, as in
        Marian.
      scaled_down: Whether to divide PE by √d_model, for embeddings that are not
        multiplied by it (Csordás et al. 2021).

    Examples:
      >>> import flaxformer_lite as fl
      >>> positions = fl.positions.Sinusoidal(interleaved=False)
      >>> model = fl.Transformer(vocab_size=100, positions=positions)
    """

    interleaved: bool = True
    scaled_down: bool = False

    def embed(self, x_BTD, positions_BT):
        rates = sinusoid_rates(self.sizes.d_model)
        angle = self.angles(positions_BT, rates)
        sin = jnp.sin(angle)
        cos = jnp.cos(angle)
        if self.interleaved:
            sinusoids_BTD = jnp.stack([sin, cos], -1).reshape(x_BTD.shape)
        else:
            sinusoids_BTD = jnp.concatenate([sin, cos], -1)
        if self.scaled_down:
            sinusoids_BTD /= self.sizes.d_model**0.5
        return x_BTD + sinusoids_BTD

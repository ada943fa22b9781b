"""Base class of norms."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.validation import Checked


class Norm(Checked, nn.Module):
    """x̂ ⊙ γ + β in float32. Variants define x̂:

        class MeanAbsolute(fl.norms.Norm):
            def normalize(self, x_BTD):
                return x_BTD / (jnp.abs(x_BTD).mean(-1, keepdims=True) + 1e-6)

    Attributes:
      biased: Whether to add β.
      divides_in: Name of the method that divides its input by a statistic of each
        token, or None. Logit attribution freezes this divisor to split a logit into
        linear terms.
      centers: Whether that method first subtracts the mean over features.
    """

    biased: ClassVar[bool] = True
    divides_in: ClassVar[str | None] = None
    centers: ClassVar[bool] = False

    def normalize(self, x_BTD: jax.Array) -> jax.Array:
        """Returns x̂ of float32 x."""
        raise NotImplementedError

    def gain(self, features: tuple[int, ...]) -> jax.Array:
        """Returns γ, initialized to 1."""
        return self.param('scale', nn.initializers.ones, features)

    @nn.compact
    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        x_BTD = self.normalize(x_BTD.astype(jnp.float32))
        features = x_BTD.shape[-1:]
        x_BTD *= self.gain(features)[None, None]
        if self.biased:
            bias_D = self.param('bias', nn.initializers.zeros, features)
            x_BTD += bias_D[None, None]
        return x_BTD

"""What norms have in common: γ ⊙ x̂ + β, learned for each feature."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.ranges import Checked


class Norm(Checked, nn.Module):
    """x̂ ⊙ γ + β, float32. A variant says what x̂ is.

    Attributes:
      biased: whether β is there.
    """

    biased: ClassVar[bool] = True

    def normalize(self, x_BTD: jax.Array) -> jax.Array:
        """x̂, of x in float32."""
        raise NotImplementedError

    def gain(self, features: tuple[int, ...]) -> jax.Array:
        """γ, of as many features; 1 at first."""
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

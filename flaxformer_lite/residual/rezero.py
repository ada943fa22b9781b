"""A gate that starts closed, and no norm (Bachlechner et al. 2020, "ReZero")."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.residual.base import Residual
from flaxformer_lite.shapes import Valid


class Rezero(Residual):
    """x + α · Dropout(f(x)), one α for each sublayer, 0 at first."""

    idle: ClassVar[tuple[str, ...]] = ('norm',)

    @nn.compact
    def after(self, x_BTD: jax.Array, y_BTD: jax.Array, valid_BT: Valid = None) -> jax.Array:
        alpha = self.param('alpha', nn.initializers.zeros_init(), (), jnp.float32)
        return x_BTD + alpha * self.dropout(y_BTD)

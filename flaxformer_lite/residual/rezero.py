"""A gate that starts closed, and no norm (Bachlechner et al. 2020, "ReZero")."""

import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.residual.base import Residual


class Rezero(Residual):
    """x + α · Dropout(f(x)), one α for each sublayer, 0 at first."""

    idle = ('norm',)

    @nn.compact
    def after(self, x_BTD, y_BTD, valid_BT=None):
        alpha = self.param('alpha', nn.initializers.zeros_init(), (), jnp.float32)
        return x_BTD + alpha * self.dropout(y_BTD)

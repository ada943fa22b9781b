"""A gate that starts closed, and no norm (Bachlechner et al. 2020, "ReZero")."""

from flax import linen as nn

from flaxformer_lite.residual.base import Residual


class Rezero(Residual):
    """x + α · Dropout(f(x)), one α for each sublayer, 0 at first."""

    idle = ('norm',)

    @nn.compact
    def after(self, x_BTD, y_BTD, valid_BT=None):
        return x_BTD + self.param('alpha', nn.initializers.zeros, ()) * self.dropout(
            y_BTD
        )

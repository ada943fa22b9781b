"""No residual connection: what attention and networks can do by themselves."""

from flaxformer_lite.residual.base import Residual


class NoResidual(Residual):
    """Dropout(f(x))."""

    idle = ('norm',)

    def after(self, x_BTD, y_BTD, valid_BT=None):
        return self.dropout(y_BTD)

"""No residual connection, to test attention and feed-forward networks alone."""

from flaxformer_lite.residual.base import Residual


class NoResidual(Residual):
    """Dropout(f(x))."""

    unused_fields = ('norm',)

    def after(self, x_BTD, y_BTD):
        return self.dropout(y_BTD)

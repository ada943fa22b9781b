"""The paper's residual connection: normalise the sum (§3.1, §5.4)."""

from flaxformer_lite.residual.base import Residual


class PostNorm(Residual):
    """LayerNorm(x + Dropout(f(x)))."""

    def after(self, x_BTD, y_BTD, valid_BT=None):
        return self.norm(super().after(x_BTD, y_BTD, valid_BT), valid_BT)

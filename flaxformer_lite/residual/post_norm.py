"""The paper's residual connection: normalise the sum (§3.1, §5.4)."""

from flaxformer_lite.residual.base import Residual


class PostNorm(Residual):
    """LayerNorm(x + Dropout(f(x)))."""

    def after(self, x_BTD, y_BTD):
        return self.norm(x_BTD + self.dropout(y_BTD))

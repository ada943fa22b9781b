"""Post-norm, the paper's residual connection: normalizes the sum (§3.1, §5.4)."""

from flaxformer_lite.residual.base import Residual


class PostNorm(Residual):
    """LayerNorm(x + Dropout(f(x))).

    Attributes:
      final: Whether to add a norm after the last layer, as PyTorch's `nn.Transformer`
        does.
    """

    final: bool = False

    def after(self, x_BTD, y_BTD):
        return self.norm(x_BTD + self.dropout(y_BTD))

    def final_norm(self, x_BTD):
        return self.norm(x_BTD) if self.final else x_BTD

"""Post-norm, the paper's residual connection: normalizes the sum (§3.1, §5.4)."""

from flaxformer_lite.residual.base import Residual


class PostNorm(Residual):
    """LayerNorm(x + Dropout(f(x))).

    Source: Vaswani et al. 2017, §3.1 and §5.4. It is the default. Train it with a
    warmup of the learning rate.

    Attributes:
      final: Whether to add a norm after the last layer, as PyTorch's `nn.Transformer`
        does.

    Examples:
      >>> import flaxformer_lite as fl
      >>> residual = fl.residual.PostNorm(final=True)
      >>> model = fl.Transformer(vocab_size=100, residual=residual)
    """

    final: bool = False

    def after(self, x_BTD, y_BTD):
        return self.norm(x_BTD + self.dropout(y_BTD))

    def final_norm(self, x_BTD):
        return self.norm(x_BTD) if self.final else x_BTD

"""Norms before and after the sublayer (Ding et al. 2021, "CogView", §2.4)."""

from flaxformer_lite.residual.pre_norm import PreNorm


class SandwichNorm(PreNorm):
    """x + Dropout(LayerNorm(f(LayerNorm(x)))), with a norm after the last layer.

    Source: Ding et al. 2021, §2.4. Use it if pre-norm is unstable, as in low precision.

    Examples:
      >>> import flaxformer_lite as fl
      >>> residual = fl.residual.SandwichNorm()
      >>> model = fl.Transformer(vocab_size=100, residual=residual)
    """

    def setup(self):
        self.norm_after = self.norm.copy(name=None)

    def after(self, x_BTD, y_BTD):
        return x_BTD + self.dropout(self.norm_after(y_BTD))

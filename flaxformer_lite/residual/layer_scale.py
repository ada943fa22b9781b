"""Pre-norm with a small gate per feature (Touvron et al. 2021, "CaiT", equation 4)."""

from flax import linen as nn

from flaxformer_lite.residual.pre_norm import PreNorm
from flaxformer_lite.validation import NotNegative


class LayerScale(PreNorm):
    """x + γ ⊙ Dropout(f(LayerNorm(x))), with another norm after the last layer.

    Source: Touvron et al. 2021, equation 4. Use it for deep models with pre-norm.

    Attributes:
      start: Initial value of γ. The paper uses 0.1 for up to 18 layers and less beyond.

    Examples:
      >>> import flaxformer_lite as fl
      >>> residual = fl.residual.LayerScale(start=0.01)
      >>> model = fl.Transformer(vocab_size=100, residual=residual)
    """

    start: NotNegative = 0.1

    @nn.compact
    def after(self, x_BTD, y_BTD):
        init = nn.initializers.constant(self.start)
        gamma_D = self.param('gamma', init, x_BTD.shape[-1:])
        y_BTD = gamma_D[None, None] * self.dropout(y_BTD)
        return x_BTD + y_BTD

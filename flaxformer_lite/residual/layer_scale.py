"""Pre-norm with a small gate per feature (Touvron et al. 2021, "CaiT", equation 4)."""

from flax import linen as nn

from flaxformer_lite.residual.pre_norm import PreNorm
from flaxformer_lite.validation import NotNegative


class LayerScale(PreNorm):
    """x + γ ⊙ Dropout(f(LayerNorm(x))), with another norm after the last layer.

    Attributes:
      start: Initial value of γ. The paper uses 0.1 for up to 18 layers and less beyond.
    """

    start: NotNegative = 0.1

    @nn.compact
    def after(self, x_BTD, y_BTD):
        init = nn.initializers.constant(self.start)
        gamma_D = self.param('gamma', init, x_BTD.shape[-1:])
        y_BTD = gamma_D[None, None] * self.dropout(y_BTD)
        return x_BTD + y_BTD

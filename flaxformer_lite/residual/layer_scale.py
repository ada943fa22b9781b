"""Pre-norm with a small gate a feature (Touvron et al. 2021, "CaiT", equation 4)."""

from flax import linen as nn

from flaxformer_lite.ranges import NotNegative
from flaxformer_lite.residual.pre_norm import PreNorm


class LayerScale(PreNorm):
    """x + γ ⊙ Dropout(f(LayerNorm(x))), and one more norm after the last layer.

    Attributes:
      start: every entry of γ at first. The paper has 0.1 up to 18 layers, and less
        above.
    """

    start: NotNegative = 0.1

    @nn.compact
    def after(self, x_BTD, y_BTD):
        init = nn.initializers.constant(self.start)
        gamma_D = self.param('gamma', init, x_BTD.shape[-1:])
        y_BTD = gamma_D[None, None] * self.dropout(y_BTD)
        return x_BTD + y_BTD

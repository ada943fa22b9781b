"""Pre-norm with a small gate for each feature (Touvron et al. 2021, "CaiT", equation 4)."""

import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.residual.base import Residual


class LayerScale(Residual):
    """x + γ ⊙ Dropout(f(LayerNorm(x))), and one norm more at the end of the stack.

    Attributes:
      start: what γ is at first; its source has 0.1 up to 18 layers, and less above.
    """

    start: float = 0.1

    def before(self, x_BTD, valid_BT=None):
        return self.norm(x_BTD, valid_BT)

    @nn.compact
    def after(self, x_BTD, y_BTD, valid_BT=None):
        start = nn.initializers.constant(self.start)
        gamma_D = self.param('gamma', start, x_BTD.shape[-1:], jnp.float32)
        return x_BTD + gamma_D[None, None] * self.dropout(y_BTD)

    def finish(self, x_BTD, valid_BT=None):
        return self.norm(x_BTD, valid_BT)

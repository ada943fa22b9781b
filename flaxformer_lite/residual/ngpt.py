"""Learned steps between normalized vectors (Loshchilov et al. 2024, "nGPT")."""

import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.residual.base import Residual
from flaxformer_lite.validation import Positive


class NGPT(Residual):
    """Norm(x + α ⊙ (Norm(Dropout(f(x))) − x)), with a learned α ≥ 0 per feature.

    The stack's input is normalized too. With the paper's norm,
    `RMSNorm(learned=False)`, streams have the norm √d_model; the paper has 1 and
    multiplies the inputs of SwiGLU by √d_model.

    The parameter s, initialized to 1 / √d_model, gives α = `step` √d_model |s|. Source:
    equations 10 and 11; the absolute value, the authors' code.

    Use it to test normalized vectors instead of a residual sum.

    Attributes:
      step: Initial α. The paper has 0.05.

    Examples:
      >>> import flaxformer_lite as fl
      >>> norm = fl.norms.RMSNorm(learned=False)
      >>> residual = fl.residual.NGPT()
      >>> model = fl.Transformer(vocab_size=100, norm=norm, residual=residual)
    """

    step: Positive = 0.05

    def setup(self):
        self.norm_after = self.norm.copy(name=None)

    def initial_stream(self, x_BTD):
        return self.norm(x_BTD)

    @nn.compact
    def after(self, x_BTD, y_BTD):
        d_model = x_BTD.shape[-1]
        init = nn.initializers.constant(d_model**-0.5)
        s_D = self.param('alpha', init, (d_model,))
        alpha_D = self.step * (jnp.abs(s_D) * d_model**0.5)
        target_BTD = self.norm_after(self.dropout(y_BTD))
        return self.norm(x_BTD + alpha_D[None, None] * (target_BTD - x_BTD))

"""Learned gate initialized to 0, without norm (Bachlechner et al. 2020, "ReZero")."""

from flax import linen as nn

from flaxformer_lite.residual.base import Residual


class ReZero(Residual):
    """x + α · Dropout(f(x)), with one learned α per sublayer, initialized to 0.

    Source: Bachlechner et al. 2020. Use it for deep models without norms.

    Examples:
      >>> import flaxformer_lite as fl
      >>> residual = fl.residual.ReZero()
      >>> model = fl.Transformer(vocab_size=100, residual=residual)
    """

    unused_fields = ('norm',)

    @nn.compact
    def after(self, x_BTD, y_BTD):
        alpha = self.param('alpha', nn.initializers.zeros, ())
        return x_BTD + alpha * self.dropout(y_BTD)

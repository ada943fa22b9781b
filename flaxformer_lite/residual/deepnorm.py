"""Post-norm for a thousand layers (Wang et al. 2022, "DeepNet", figure 2)."""

from flaxformer_lite.init import deepnorm
from flaxformer_lite.residual.base import Residual


class DeepNorm(Residual):
    """LayerNorm(α x + Dropout(f(x))), for matrices initialized by `fl.init.DeepNorm`.

    α = 0.81 (N⁴ M)^(1/16) in an encoder of N layers and (3 M)^(1/4) in a decoder of M
    layers. In a single stack of N layers, α = (2 N)^(1/4).

    Source: Wang et al. 2022, figure 2. Use it for very deep models with post-norm.

    Examples:
      >>> import flaxformer_lite as fl
      >>> residual = fl.residual.DeepNorm()
      >>> model = fl.Transformer(vocab_size=100, residual=residual)
    """

    default_init = deepnorm.DeepNorm

    def after(self, x_BTD, y_BTD):
        return self.norm(self.alpha() * x_BTD + self.dropout(y_BTD))

    def alpha(self) -> float:
        """α, the weight of the residual stream."""
        encoder = self.sizes.encoder_layers
        decoder = self.sizes.decoder_layers
        if self.sizes.role == 'encoder':
            return 0.81 * (encoder**4 * decoder) ** (1 / 16)
        if self.sizes.role == 'decoder':
            return (3 * decoder) ** 0.25
        return (2 * self.sizes.num_layers) ** 0.25

"""Post-norm for a thousand layers (Wang et al. 2022, "DeepNet", figure 2)."""

from typing import Annotated

from flaxformer_lite.ranges import Choices, Range
from flaxformer_lite.residual.base import Residual


class Deepnorm(Residual):
    """LayerNorm(α x + Dropout(f(x))), with the matrices that `init/deepnorm.py` begins with.

    α = 0.81 (N⁴ M)^(1/16) in an encoder of N layers and (3 M)^(1/4) in a decoder of M; (2 N)^(1/4)
    where there is only one of them.

    Attributes:
      stack: 'encoder' or 'decoder'.
      encoder_layers, decoder_layers: N and M.
    """

    initial = 'deepnorm'
    stack: Annotated[str, Choices('encoder', 'decoder')]
    encoder_layers: Annotated[int, Range(at_least=0)]
    decoder_layers: Annotated[int, Range(at_least=0)]

    def after(self, x_BTD, y_BTD, valid_BT=None):
        n, m = self.encoder_layers, self.decoder_layers
        beside = (
            0.81 * (n**4 * m) ** (1 / 16)
            if self.stack == 'encoder'
            else (3 * m) ** 0.25
        )
        alpha = beside if n and m else (2 * (n or m)) ** 0.25
        return self.norm(alpha * x_BTD + self.dropout(y_BTD), valid_BT)

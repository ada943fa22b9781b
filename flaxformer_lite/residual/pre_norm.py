"""Pre-norm: normalizes the sublayer's input, not the stream (Xiong et al. 2020)."""

from flaxformer_lite.residual.base import Residual


class PreNorm(Residual):
    """x + Dropout(f(LayerNorm(x))), with another norm after the last layer."""

    def before(self, x_BTD):
        return self.norm(x_BTD)

    def final_norm(self, x_BTD):
        return self.norm(x_BTD)

"""Normalises the input of the sublayer, not the stream (Xiong et al. 2020)."""

from flaxformer_lite.residual.base import Residual


class PreNorm(Residual):
    """x + Dropout(f(LayerNorm(x))), and one more norm after the last layer."""

    def before(self, x_BTD):
        return self.norm(x_BTD)

    def final_norm(self, x_BTD):
        return self.norm(x_BTD)

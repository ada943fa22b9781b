"""Norms before and after the sublayer (Ding et al. 2021, "CogView", §2.4)."""

from flaxformer_lite.residual.pre_norm import PreNorm


class SandwichNorm(PreNorm):
    """x + Dropout(LayerNorm(f(LayerNorm(x)))), with a norm after the last layer."""

    def setup(self):
        self.norm_after = self.norm.copy(name=None)

    def after(self, x_BTD, y_BTD):
        return x_BTD + self.dropout(self.norm_after(y_BTD))

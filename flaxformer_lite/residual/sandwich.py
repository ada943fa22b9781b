"""Normalise the branch on both sides (Ding et al. 2021, "CogView", §2.4)."""

from flaxformer_lite.residual.pre_norm import PreNorm


class Sandwich(PreNorm):
    """x + Dropout(LayerNorm(f(LayerNorm(x)))), and one norm more at the end of the stack."""

    def setup(self):
        self.norm_after = self.norm.copy(name=None)

    def after(self, x_BTD, y_BTD, valid_BT=None):
        return super().after(x_BTD, self.norm_after(y_BTD, valid_BT), valid_BT)

"""Normalise the branch and leave the stream alone (Xiong et al. 2020)."""

from flaxformer_lite.residual.base import Residual


class PreNorm(Residual):
    """x + Dropout(f(LayerNorm(x))), and one norm more at the end of the stack."""

    def before(self, x_BTD, valid_BT=None):
        return self.norm(x_BTD, valid_BT)

    def finish(self, x_BTD, valid_BT=None):
        return self.norm(x_BTD, valid_BT)

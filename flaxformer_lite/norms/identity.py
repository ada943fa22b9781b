"""No normalization."""

from flaxformer_lite.norms.base import Norm


class Identity(Norm):
    """The input x."""

    def __call__(self, x_BTD):
        return x_BTD

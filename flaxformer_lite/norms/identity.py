"""No normalisation."""

from flaxformer_lite.norms.base import Norm


class Identity(Norm):
    """x."""

    def __call__(self, x_BTD):
        return x_BTD

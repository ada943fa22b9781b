"""No normalisation."""

from flax import linen as nn


class Identity(nn.Module):
    """x."""

    def __call__(self, x_BTD, valid_BT=None):
        return x_BTD

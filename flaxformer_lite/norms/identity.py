"""No normalisation."""

from flax import linen as nn


class Identity(nn.Module):
    """x."""

    def __call__(self, x_BTD):
        return x_BTD

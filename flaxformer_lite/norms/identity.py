"""No normalisation."""

import jax
from flax import linen as nn

from flaxformer_lite.shapes import Valid


class Identity(nn.Module):
    """x."""

    def __call__(self, x_BTD: jax.Array, valid_BT: Valid = None) -> jax.Array:
        return x_BTD

"""A learned vector for each position, added to embeddings (§3.5; Table 3, row E)."""

import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.positions.base import Positions
from flaxformer_lite.ranges import Size


class Learned(Positions):
    """x + P[pos], P of shape (max_length, d_model).

    A compiled program cannot refuse a position beyond the table. Its row is NaN, never
    the vector of another position: check lengths before you call the model.

    Attributes:
      max_length: rows of the table.
    """

    max_length: Size = 1024

    @nn.compact
    def embed(self, x_BTD, positions_BT):
        d_model = x_BTD.shape[-1]
        init = nn.initializers.normal(d_model**-0.5)
        table = self.param('table', init, (self.max_length, d_model))
        rows = jnp.take(table, positions_BT, axis=0, mode='fill', fill_value=jnp.nan)
        return x_BTD + rows

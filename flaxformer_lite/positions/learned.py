"""A learned vector for each position, added to the embeddings (paper §3.5 and Table 3, row E)."""

import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.positions.base import Positions
from flaxformer_lite.ranges import Size


class Learned(Positions):
    """x + P[pos], P of shape (max_length, d_model).

    Positions are values that no shape shows, so one beyond the table cannot be refused in a
    compiled program: its row is NaN, never another position's vector. Who feeds it checks first.
    """

    max_length: Size = 1024

    @nn.compact
    def embed(self, x_BTD, pos_BT):
        init = nn.initializers.normal(x_BTD.shape[-1] ** -0.5)
        table = self.param('table', init, (self.max_length, x_BTD.shape[-1]))
        return x_BTD + jnp.take(table, pos_BT, axis=0, mode='fill', fill_value=jnp.nan)

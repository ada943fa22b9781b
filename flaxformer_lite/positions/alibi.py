"""Attention with linear biases (Press et al. 2022)."""

import math

import jax.numpy as jnp

from flaxformer_lite.positions.base import Positions, distances
from flaxformer_lite.ranges import Size


class Alibi(Positions):
    """Scores − m_h · |distance|, m_h fixed for each head: a key counts less the further away.

    m_h = 2^(−8 i / h) for i = 1 … h, h a power of two; for other h, the paper's code fills the list
    of the power below with every second one of the power above.
    """

    num_heads: Size

    def bias(self, q_pos_BT, k_pos_BS):
        power = 2 ** math.floor(math.log2(self.num_heads))
        exponents = [8 * i / power for i in range(1, power + 1)]
        exponents += [8 * i / (2 * power) for i in range(1, 2 * power + 1, 2)]
        slope_H = 2.0 ** -jnp.array(exponents[: self.num_heads])
        distance_BTS = jnp.abs(distances(q_pos_BT, k_pos_BS)).astype(jnp.float32)
        return -slope_H[None, :, None, None] * distance_BTS[:, None]

"""Attention with linear biases (Press et al. 2022)."""

import math

import jax.numpy as jnp

from flaxformer_lite.positions.base import Positions


def slopes(num_heads: int) -> list[float]:
    """2^(−8 i / h) for i = 1 … h, h a power of two; for other h, the paper's code fills the list of
    the power below with every second one of the power above."""
    power = 2 ** math.floor(math.log2(num_heads))
    first = [2 ** (-8 * i / power) for i in range(1, power + 1)]
    between = [2 ** (-8 * i / (2 * power)) for i in range(1, 2 * power + 1, 2)]
    return first + between[: num_heads - power]


class Alibi(Positions):
    """Scores − m_h · |distance|, m_h fixed for each head: a key counts less the further away."""

    num_heads: int

    def bias(self, q_pos_BT, k_pos_BS):
        distance_BTS = jnp.abs(q_pos_BT[:, :, None] - k_pos_BS[:, None, :])
        slope_H = jnp.asarray(slopes(self.num_heads), jnp.float32)
        return -slope_H[None, :, None, None] * distance_BTS[:, None].astype(jnp.float32)

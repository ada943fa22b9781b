"""Attention with linear biases (Press et al. 2022)."""

import math

import jax.numpy as jnp

from flaxformer_lite.positions.base import Positions, distances


class ALiBi(Positions):
    """Linear biases: scores − m_h · |distance|.

    The slope m_h of head h is fixed: 2^(−8 i / h) for i = 1 … h if h is a power of two.
    Other h use the slopes of the next lower power of two, then every second one of the
    next higher, as in the paper's code.

    Source: Press et al. 2022. Use it for sentences longer than those of training.

    Examples:
      >>> from flaxformer_lite.sizes import Sizes
      >>> positions = ALiBi(sizes=Sizes(num_heads=2))
      >>> positions_BT = jnp.arange(3)[None]
      >>> print(positions.bias(positions_BT, positions_BT)[0, 0] * 16)
      [[-0. -1. -2.]
       [-1. -0. -1.]
       [-2. -1. -0.]]
    """

    def bias(self, query_positions_BT, key_positions_BS):
        slopes_H = jnp.array(self.slopes())
        offset_BTS = distances(query_positions_BT, key_positions_BS)
        distance_BTS = jnp.abs(offset_BTS).astype(jnp.float32)
        distance_B1TS = distance_BTS[:, None]
        return -slopes_H[None, :, None, None] * distance_B1TS

    def slopes(self) -> list[float]:
        """Returns the slope m_h of each head."""
        num_heads = self.sizes.num_heads
        power = 2 ** math.floor(math.log2(num_heads))
        exponents = [8 * i / power for i in range(1, power + 1)]
        above = 2 * power
        exponents += [8 * i / above for i in range(1, above + 1, 2)]
        return [2.0**-x for x in exponents[:num_heads]]

"""Bucketed relative biases (Raffel et al. 2020, "T5", §2.1)."""

import math
from typing import Annotated

import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.positions.base import Positions, distances
from flaxformer_lite.ranges import Range, Size


class T5(Positions):
    """Scores + table[bucket(distance), head], one table for all layers of a stack.

    Half the buckets are for one distance each, the others grow as the logarithm of it up to
    `max_distance`, beyond which all share the last. Where queries see later keys, which is not
    `causal`, either side has as many.

    Raises:
      ValueError: max_distance leaves nothing for far keys.
    """

    num_heads: Size
    causal: bool
    buckets: Annotated[int, Range(at_least=4)] = 32
    max_distance: Size = 128

    def __post_init__(self):
        super().__post_init__()
        if self.max_distance <= self.buckets // 2:
            raise ValueError(
                f'max_distance must be above half of buckets={self.buckets}, '
                f'not {self.max_distance}'
            )

    @nn.compact
    def bias(self, q_pos_BT, k_pos_BS):
        shape = self.buckets, self.num_heads
        table = self.param('table', nn.initializers.normal(0.1), shape)
        return jnp.moveaxis(table[self._bucket(distances(q_pos_BT, k_pos_BS))], -1, 1)

    def _bucket(self, distance):
        buckets, after = self.buckets, jnp.zeros_like(distance)
        if self.causal:
            distance = jnp.maximum(-distance, 0)
        else:
            buckets //= 2
            after, distance = jnp.where(distance > 0, buckets, 0), jnp.abs(distance)
        exact = buckets // 2
        share = jnp.log(jnp.maximum(distance, 1) / exact) / math.log(
            self.max_distance / exact
        )
        far = exact + (share * (buckets - exact)).astype(jnp.int32)
        return after + jnp.where(
            distance < exact, distance, jnp.minimum(far, buckets - 1)
        )

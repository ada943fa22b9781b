"""Bucketed relative biases (Raffel et al. 2020, "T5", §2.1)."""

import math
from typing import Annotated

import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.positions.base import Positions, distances
from flaxformer_lite.validation import Range, Size


class T5(Positions):
    """Bucketed relative biases: scores + table[bucket(distance), head].

    Half of the buckets hold one distance each. The others grow logarithmically.
    Non-causal stacks use half of the buckets for keys after the query.

    Source: Raffel et al. 2020, §2.1. Use it for relative positions with few parameters.

    Attributes:
      max_distance: Distance from which keys share the last bucket.
      per_layer: Whether each layer has its own table, as in umT5 (Chung et al. 2023,
        "UniMax", §4).

    Raises:
      ValueError: max_distance is not above half of `buckets`.

    Examples:
      >>> import flaxformer_lite as fl
      >>> positions = fl.positions.T5(max_distance=64)
      >>> model = fl.Transformer(vocab_size=100, positions=positions)
    """

    buckets: Annotated[int, Range(at_least=4)] = 32
    max_distance: Size = 128
    per_layer: bool = False

    def __post_init__(self):
        super().__post_init__()
        if self.max_distance <= self.buckets // 2:
            raise ValueError(
                f'T5.max_distance must be above half of buckets={self.buckets}, not '
                f'{self.max_distance}'
            )

    @property
    def acts_on_stack(self):
        return not self.per_layer

    def bias(self, query_positions_BT, key_positions_BS):
        if self.per_layer:
            return None
        return self._bias(query_positions_BT, key_positions_BS)

    @property
    def has_layer_bias(self):
        return self.per_layer

    def layer_bias(self, query_positions_BT, key_positions_BS):
        return self._bias(query_positions_BT, key_positions_BS)

    @nn.compact
    def _bias(self, query_positions_BT, key_positions_BS):
        shape = self.buckets, self.sizes.num_heads
        table = self.param('table', nn.initializers.normal(0.1), shape)
        distance_BTS = distances(query_positions_BT, key_positions_BS)
        bias_BTSH = table[self._bucket(distance_BTS)]
        return jnp.moveaxis(bias_BTSH, -1, 1)

    def _bucket(self, distance):
        if self.sizes.causal:
            return self._bucket_of(jnp.maximum(-distance, 0), self.buckets)
        half = self.buckets // 2
        first = jnp.where(distance > 0, half, 0)
        return first + self._bucket_of(jnp.abs(distance), half)

    def _bucket_of(self, distance, buckets):
        exact = buckets // 2
        octaves = jnp.log(jnp.maximum(distance, 1) / exact)
        share = octaves / math.log(self.max_distance / exact)
        behind = share * (buckets - exact)
        far = exact + behind.astype(jnp.int32)
        far = jnp.minimum(far, buckets - 1)
        return jnp.where(distance < exact, distance, far)

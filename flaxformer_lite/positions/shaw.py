"""Relative keys and values (Shaw et al. 2018, equations 3 and 4)."""

from typing import Annotated

import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.ops.sum_by_index import sum_by_index
from flaxformer_lite.positions.base import Positions, distances
from flaxformer_lite.validation import Range


class Shaw(Positions):
    """Relative terms: scores + q · a^K_r / √d_k and outputs + Σ_s w_s a^V_r.

    r is the distance, clipped to ± `max_distance`. Each attention has its own vectors
    a, shared by its heads.

    Source: Shaw et al. 2018, equations 3 and 4. Use it for relative positions in
    translation, as the source does.

    Examples:
      >>> import flaxformer_lite as fl
      >>> positions = fl.positions.Shaw()
      >>> model = fl.Transformer(vocab_size=100, positions=positions)
    """

    adds_scores = True
    max_distance: Annotated[int, Range(at_least=0, at_most=2**20)] = 16

    def setup(self):
        init = nn.initializers.xavier_uniform()
        number = 2 * self.max_distance + 1
        self.key_RK = self.param('key', init, (number, self.sizes.d_k))
        self.value_RU = self.param('value', init, (number, self.sizes.d_v))

    def _index(self, query_positions_BT, key_positions_BS):
        distance_BTS = distances(query_positions_BT, key_positions_BS)
        clipped = jnp.clip(distance_BTS, -self.max_distance, self.max_distance)
        return clipped + self.max_distance

    def scores(self, q_BTHK, query_positions_BT, key_positions_BS):
        q_BTHK = q_BTHK.astype(jnp.float32)
        by_distance_BHTR = jnp.einsum('bthk,rk->bhtr', q_BTHK, self.key_RK)
        by_distance_BHTR *= self.sizes.d_k**-0.5
        index_BTS = self._index(query_positions_BT, key_positions_BS)
        return jnp.take_along_axis(by_distance_BHTR, index_BTS[:, None], -1)

    def values(self, weights_BHTS, query_positions_BT, key_positions_BS):
        index_BTS = self._index(query_positions_BT, key_positions_BS)
        weights_BHTS = weights_BHTS.astype(jnp.float32)
        number = len(self.value_RU)
        by_distance_BHTR = sum_by_index(weights_BHTS, index_BTS, number)
        return jnp.einsum('bhtr,ru->bthu', by_distance_BHTR, self.value_RU)

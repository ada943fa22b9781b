"""Relative keys and values (Shaw et al. 2018, equations 3 and 4)."""

from typing import Annotated

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.positions.base import Positions, distances
from flaxformer_lite.ranges import Range, Size


class Shaw(Positions):
    """Scores + q · a^K_r / √d_k, results + Σ_s w_s a^V_r, r the distance clipped to ±max_distance.

    The vectors are an attention's own and shared by its heads.
    """

    relative = True
    d_k: Size
    d_v: Size
    max_distance: Annotated[int, Range(at_least=0, at_most=2**20)] = 16

    def setup(self):
        init, number = nn.initializers.xavier_uniform(), 2 * self.max_distance + 1
        self.key_RK = self.param('key', init, (number, self.d_k))
        self.value_RU = self.param('value', init, (number, self.d_v))

    def _index(self, q_pos_BT, k_pos_BS):
        most = self.max_distance
        return jnp.clip(distances(q_pos_BT, k_pos_BS), -most, most) + most

    def scores(self, q_BTHK, q_pos_BT, k_pos_BS):
        s_BHTR = jnp.einsum('bthk,rk->bhtr', q_BTHK.astype(jnp.float32), self.key_RK)
        index_BHTS = self._index(q_pos_BT, k_pos_BS)[:, None]
        return jnp.take_along_axis(s_BHTR * self.d_k**-0.5, index_BHTS, -1)

    def values(self, w_BHTS, q_pos_BT, k_pos_BS):
        place_BTSR = jax.nn.one_hot(self._index(q_pos_BT, k_pos_BS), len(self.value_RU))
        w_BTHR = jnp.einsum('bhts,btsr->bthr', w_BHTS.astype(jnp.float32), place_BTSR)
        return jnp.einsum('bthr,ru->bthu', w_BTHR, self.value_RU)

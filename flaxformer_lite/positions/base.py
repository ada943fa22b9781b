"""The places where positions can enter; a variant overrides those that it uses."""

from typing import ClassVar

import jax
from flax import linen as nn

from flaxformer_lite.ranges import Checked


class Positions(Checked, nn.Module):
    """Nothing in any of the places; `pos` are int32.

    An attention is asked for `scores` and `values` only if they are `relative`.
    """

    relative: ClassVar[bool] = False

    @property
    def within(self) -> bool:
        """Whether an attention by itself sees these positions."""
        return self.relative or type(self).rotate is not Positions.rotate

    def embed(self, x_BTD: jax.Array, pos_BT: jax.Array) -> jax.Array:
        """What enters the first layer."""
        return x_BTD

    def rotate(self, x_BTHK: jax.Array, pos_BT: jax.Array) -> jax.Array:
        """Queries and keys before their product."""
        return x_BTHK

    def bias(self, q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array | None:
        """What is added to the scores of each layer, broadcastable to BHTS; None for nothing."""
        return None

    def scores(
        self, q_BTHK: jax.Array, q_pos_BT: jax.Array, k_pos_BS: jax.Array
    ) -> jax.Array:
        """What one attention adds to its scores, BHTS, by the queries themselves."""
        raise NotImplementedError

    def values(
        self, w_BHTS: jax.Array, q_pos_BT: jax.Array, k_pos_BS: jax.Array
    ) -> jax.Array:
        """What one attention adds to its results, BTHU, by its weights."""
        raise NotImplementedError


def distances(q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array:
    """How far each key is after each query, in tokens, int32 BTS."""
    return k_pos_BS[:, None, :] - q_pos_BT[:, :, None]

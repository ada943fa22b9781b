"""The three places where positions can enter; a variant overrides those that it uses."""

import jax
from flax import linen as nn


class Positions(nn.Module):
    """The identity in all three places."""

    def embed(self, x_BTD: jax.Array, pos_BT: jax.Array) -> jax.Array:
        """What enters the first layer."""
        return x_BTD

    def rotate(self, x_BTHK: jax.Array, pos_BT: jax.Array) -> jax.Array:
        """Queries and keys before their product."""
        return x_BTHK

    def bias(self, q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array | None:
        """What is added to the scores, broadcastable to BHTS, or None for nothing."""
        return None

"""Which token stands where when each expert works on tokens of its own."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Routing(NamedTuple):
    """Where each token's choices are worked off.

    Attributes:
      token_ER: int32, the token in each of the R places of each expert; N for none.
      place_P: int32, the place of each choice, counted over all experts, P = K · N: first choices
        of all tokens, then second ones; one beyond the last for none.
      chosen_PE: float32, 1 where a choice fell on an expert.
    """

    token_ER: jax.Array
    place_P: jax.Array
    chosen_PE: jax.Array

    def to_experts(self, x_ND: jax.Array) -> jax.Array:
        """Tokens to their places, ERD; zeros where there is none."""
        return x_ND.at[self.token_ER].get(mode='fill', fill_value=0)

    def to_tokens(self, y_ERD: jax.Array, weight_NK: jax.Array) -> jax.Array:
        """What a token's choices made of it, times its weights, summed up: ND."""
        y_PD = y_ERD.reshape(-1, y_ERD.shape[-1]).at[self.place_P].get(mode='fill', fill_value=0)
        n, k = weight_NK.shape
        return (y_PD * weight_NK.T.reshape(-1, 1)).reshape(k, n, -1).sum(0)

    def balance(self, p_NE: jax.Array, valid_N: jax.Array) -> jax.Array:
        """E Σ_e f_e P_e, f_e the share of choices that fell on e, P_e the mean of p_e: 1 where all
        are chosen alike (Fedus et al. 2022, equation 4)."""
        f_E = self.chosen_PE.sum(0) / jnp.maximum(self.chosen_PE.sum(), 1)
        p_E = (p_NE * valid_N[:, None]).sum(0) / jnp.maximum(valid_N.sum(), 1)
        return p_NE.shape[-1] * (f_E * p_E).sum()

    def dropped(self) -> jax.Array:
        """The share of choices that found no room."""
        lost = self.chosen_PE.sum() - (self.place_P < self.token_ER.size).sum()
        return lost / jnp.maximum(self.chosen_PE.sum(), 1)


def route(expert_NK: jax.Array, valid_N: jax.Array, experts: int, room: int) -> Routing:
    """An expert's places are taken by first choices, then by second ones; by padding never.

    Args:
      expert_NK: int32, each token's choices.
      valid_N: bool, False for padding.
      room: places of each expert.
    """
    n, k = expert_NK.shape
    expert_P, valid_P = expert_NK.T.reshape(-1), jnp.tile(valid_N, k)
    chosen_PE = jax.nn.one_hot(expert_P, experts, dtype=jnp.int32) * valid_P[:, None]
    before_P = ((jnp.cumsum(chosen_PE, 0) - 1) * chosen_PE).sum(-1)
    kept_P = valid_P & (before_P < room)
    place_P = jnp.where(kept_P, expert_P * room + before_P, experts * room)
    token_P = jnp.tile(jnp.arange(n, dtype=jnp.int32), k)
    token_S = jnp.full(experts * room, n, jnp.int32).at[place_P].set(token_P, mode='drop')
    return Routing(token_S.reshape(experts, room), place_P, chosen_PE.astype(jnp.float32))

"""Which token stands where when each expert works on tokens of its own."""

import jax
import jax.numpy as jnp


def places(
    expert_NK: jax.Array, valid_N: jax.Array, experts: int, room: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """First choices of all tokens, then second ones: an expert's places are taken in this order.

    Args:
      expert_NK: int32, each token's choices.
      valid_N: padding takes no place.
      room: places of each expert.

    Returns:
      token_S: int32, the token at each of the experts' slots (expert by expert); N for none.
      slot_P: int32, the slot of each choice, P = K · N; one beyond the last for none.
      chosen_PE: int32, 1 where a choice fell on an expert.
    """
    (n, k), slots = expert_NK.shape, experts * room
    expert_P = expert_NK.T.reshape(-1)
    chosen_PE = jax.nn.one_hot(expert_P, experts, dtype=jnp.int32)
    chosen_PE *= jnp.tile(valid_N, k)[:, None]
    place_P = ((jnp.cumsum(chosen_PE, 0) - 1) * chosen_PE).sum(-1)
    kept_P = jnp.tile(valid_N, k) & (place_P < room)
    slot_P = jnp.where(kept_P, expert_P * room + place_P, slots)
    token_P = jnp.tile(jnp.arange(n, dtype=jnp.int32), k)
    token_S = jnp.full(slots, n, jnp.int32).at[slot_P].set(token_P, mode='drop')
    return token_S, slot_P, chosen_PE

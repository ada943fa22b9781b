"""Which query may attend to which key: boolean masks, True = may attend, broadcastable to BHTS."""

import jax
import jax.numpy as jnp


def segments(query_BT: jax.Array, key_BS: jax.Array) -> jax.Array:
    """Attend within a segment. Segment 0 is padding, which nothing attends to. → B1TS."""
    same = query_BT[:, None, :, None] == key_BS[:, None, None, :]
    return same & (key_BS != 0)[:, None, None, :]


def causal(query_pos_BT: jax.Array, key_pos_BS: jax.Array) -> jax.Array:
    """Attend to positions that are not after the query's own (paper §3.2.3). → B1TS."""
    return query_pos_BT[:, None, :, None] >= key_pos_BS[:, None, None, :]


def positions(tokens_BT: jax.Array) -> jax.Array:
    """0, 1, 2, … along rows of a sentence each → int32 BT; padding has 0, which all tables have."""
    return jnp.where(tokens_BT != 0, jnp.arange(tokens_BT.shape[1], dtype=jnp.int32)[None], 0)

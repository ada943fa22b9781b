"""The shape suffixes: array names end in the letters of their axes.

`x_BTD` has the shape batch × query length × d_model.

| letter | axis | letter | axis |
|---|---|---|---|
| B | batch | H | query heads |
| T | query (or target) length | G | key and value heads, where fewer than H |
| S | key (or source) length | K | d_k, the width of one head's queries and keys |
| D | d_model | U | d_v, the width of one head's values |
| F | d_ff | V | vocabulary |
| N | rows of any kind: tokens, or the hypotheses of a sentence | L | decoded length |

Einsum strings use the same letters in lower case: `'bthk,bshk->bhts'`.
"""

import jax
import jax.numpy as jnp


def split_into_blocks(
    x: jax.Array, axis: int, size: int, filling: int | None = 0
) -> jax.Array:
    """Splits an axis into blocks, which become the first axis: (blocks, …, block, …).

    Blocks have equal length, at most `size`. The axis is padded with `filling` to a
    multiple of the number of blocks; None repeats the last element.

    Examples:
      >>> split_into_blocks(jnp.arange(5), axis=0, size=2).tolist()
      [[0, 1], [2, 3], [4, 0]]
    """
    *before, length = x.shape[: axis + 1]
    after = x.shape[axis + 1 :]
    count = -(-length // size)
    padding = [(0, 0)] * x.ndim
    padding[axis] = (0, -length % count)
    if filling is None:
        x = jnp.pad(x, padding, 'edge')
    else:
        x = jnp.pad(x, padding, constant_values=filling)
    x = x.reshape(*before, count, -1, *after)
    return jnp.moveaxis(x, axis, 0)


def fold_groups(x_BTHK: jax.Array, group_size: int) -> jax.Array:
    """Reshapes (B, T, H, K) to (B, T · group size, H / group size, K).

    Query heads that share a key head become queries of one head.
    """
    b, t, h, k = x_BTHK.shape
    g = h // group_size
    x_BTGRK = x_BTHK.reshape(b, t, g, group_size, k)
    x_BTRGK = jnp.swapaxes(x_BTGRK, 2, 3)
    return x_BTRGK.reshape(b, t * group_size, g, k)


def unfold_groups(y_BTHU: jax.Array, group_size: int) -> jax.Array:
    """Inverts `fold_groups`."""
    b, folded, g, u = y_BTHU.shape
    t = folded // group_size
    y_BTRGU = y_BTHU.reshape(b, t, group_size, g, u)
    y_BTGRU = jnp.swapaxes(y_BTRGU, 2, 3)
    return y_BTGRU.reshape(b, t, g * group_size, u)

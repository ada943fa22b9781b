"""The shape key, and the keys and values that attention reads.

An array's name ends in the letters of its axes: `x_BTD` is batch × query length × d_model.

| letter | axis | letter | axis |
|---|---|---|---|
| B | batch | H | heads |
| T | query (or target) length | G | key and value heads, where fewer than H |
| S | key (or source) length | K | d_k, the width of one head's queries and keys |
| D | d_model | U | d_v, the width of one head's values |
| F | d_ff | V | vocabulary |

Einsum letters are the same in lower case: `'bthk,bshk->bhts'`.
"""

import jax
from flax import struct


class KV(struct.PyTreeNode):
    """Keys and values with the positions they stand at: an attention's own, or a decoder's cache.

    Attributes:
      key_BSGK: keys, in the compute dtype.
      value_BSGU: values, in the compute dtype.
      pos_BS: int32 positions.
    """

    key_BSGK: jax.Array
    value_BSGU: jax.Array
    pos_BS: jax.Array


def insert(cache: KV, new: KV, step: jax.Array) -> KV:
    """The cache with `new` (B, 1, …) written at slot `step` (int32 scalar) of every row."""

    def write(old: jax.Array, value: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice_in_dim(old, value, step, axis=1)

    return jax.tree.map(write, cache, new)

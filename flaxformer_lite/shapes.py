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
import jax.numpy as jnp
from flax import struct

# Which places hold a token: bool BT, or None where all do.
Valid = jax.Array | None


class Path(struct.PyTreeNode):
    """Where the N hypotheses of each sentence stand while decoding.

    What the N hypotheses are fed at step i is written to the slots i N … i N + N − 1 of a cache and
    never moved: hypotheses part and die by what they see.

    Attributes:
      step: int32 scalar, the position of the tokens that are fed.
      parent_BN: int32, the hypothesis of the step before that each one continues.
      visible_BNS: bool, the slots of each one's own past and of itself.
    """

    step: jax.Array
    parent_BN: jax.Array
    visible_BNS: jax.Array


class KV(struct.PyTreeNode):
    """Keys and values with the positions they stand at: an attention's own, or a decoder's cache.

    The length is the last axis: so both of attention's products read memory in order, which on CPU
    makes a decoding step several times faster.

    Attributes:
      key_BGKS: keys, in the compute dtype.
      value_BGUS: values, in the compute dtype.
      pos_BS: int32 positions.
    """

    key_BGKS: jax.Array
    value_BGUS: jax.Array
    pos_BS: jax.Array

    def insert(self, new: 'KV', path: Path) -> 'KV':
        """This cache with `new`, of length N, written to its step's slots."""
        slot = path.step * path.visible_BNS.shape[1]

        def write(old: jax.Array, value: jax.Array) -> jax.Array:
            return jax.lax.dynamic_update_slice_in_dim(old, value, slot, axis=-1)

        return jax.tree.map(write, self, new)

    def grow(self, hypotheses: int, tokens: int) -> 'KV':
        """This cache with free slots added, up to so many tokens of each hypothesis."""

        def pad(x: jax.Array) -> jax.Array:
            return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, hypotheses * tokens - x.shape[-1])])

        return jax.tree.map(pad, self)

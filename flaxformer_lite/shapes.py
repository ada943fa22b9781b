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

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

# Which places hold a token: bool BT, or None where all do.
Valid = jax.Array | None


class Places(NamedTuple):
    """Where tokens stand, and what they may see.

    Attributes:
      pos_BT: int32 positions.
      valid_BT: bool, False for padding; None where nothing is.
      mask_BHTS: bool, which keys each may attend to.
      source_mask_BHTS: which of the source's, in a decoder.
      key_pos_BS: int32, where the keys stand, if they are not of the tokens themselves.
      bias_BHTS: what positions add to the scores.
    """

    pos_BT: jax.Array
    valid_BT: Valid
    mask_BHTS: jax.Array
    source_mask_BHTS: jax.Array | None = None
    key_pos_BS: jax.Array | None = None
    bias_BHTS: jax.Array | None = None

    def of_source(self) -> 'Places':
        """The same, before the source's keys."""
        return Places(self.pos_BT, self.valid_BT, self.source_mask_BHTS)


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

    def slot_steps(self) -> jax.Array:
        """The step that each slot is of, int32 (1, slots)."""
        hypotheses, slots = self.visible_BNS.shape[1:]
        return jnp.arange(slots, dtype=jnp.int32)[None] // hypotheses


class KV(struct.PyTreeNode):
    """Keys and values in the compute dtype, with the int32 positions they stand at.

    The length is the last axis: so both of attention's products read memory in order, which on CPU
    makes a decoding step several times faster.
    """

    key_BGKS: jax.Array
    value_BGUS: jax.Array
    pos_BS: jax.Array


class Cache(struct.PyTreeNode):
    """The keys and values that decoding remembers of one layer.

    Attributes:
      shared: of what all hypotheses of a sentence begin with; of no tokens, in an encoder-decoder.
      slots: of what each was fed, where `Path` says.
    """

    shared: KV
    slots: KV

    def insert(self, new: KV, path: Path) -> tuple['Cache', KV]:
        """This cache with `new`, of length N, in its step's slots, and all that it holds then."""
        slot = path.step * path.visible_BNS.shape[1]

        def write(old, value):
            return jax.lax.dynamic_update_slice_in_dim(old, value, slot, axis=-1)

        def join(one, other):
            return jnp.concatenate([one, other], -1) if one.shape[-1] else other

        slots = jax.tree.map(write, self.slots, new)
        return Cache(self.shared, slots), jax.tree.map(join, self.shared, slots)

    def grow(self, hypotheses: int, tokens: int) -> 'Cache':
        """This cache with free slots added, up to so many tokens of each hypothesis."""

        def pad(x):
            return jnp.pad(
                x, [(0, 0)] * (x.ndim - 1) + [(0, hypotheses * tokens - x.shape[-1])]
            )

        return self.replace(slots=jax.tree.map(pad, self.slots))


# What an attention carries from token to token: a `Cache`, or anything with its `insert` and
# `grow`, such as the running sums of `attention/linear.py`.
Remembered = Any


def blocks(x: jax.Array, axis: int, size: int) -> jax.Array:
    """The axis in blocks of about that size, filled up with zeros: (blocks, …, block, …)."""
    count = -(-x.shape[axis] // size)
    widths = [(0, -n % count if i == axis else 0) for i, n in enumerate(x.shape)]
    shape = (*x.shape[:axis], count, -1, *x.shape[axis + 1 :])
    return jnp.moveaxis(jnp.pad(x, widths).reshape(shape), axis, 0)


def take(x_BN: jax.Array, index_BM: jax.Array) -> jax.Array:
    """Hypotheses by index: x[b, index[b, m]]."""
    return jax.vmap(lambda x_N, index_M: x_N[index_M])(x_BN, index_BM)


def for_each(hypotheses: int, tree: Any) -> Any:
    """States that a sentence's hypotheses all begin with, for each of them: B1… → BN….

    States that are there for each hypothesis already stay what they are.
    """
    return jax.tree.map(lambda x: jnp.repeat(x, hypotheses // x.shape[1], 1), tree)

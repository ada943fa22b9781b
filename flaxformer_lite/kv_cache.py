"""Keys and values of attention, and the key/value cache for decoding.

A cache is immutable and append-only. At step i, the keys and values of a sentence's N
hypotheses go to slots i·N … i·N + N − 1. A mask selects the slots of each hypothesis,
so reordering beams moves nothing.
"""

from typing import Any, Self

import jax
import jax.numpy as jnp
from flax import struct

# The decoding state of one layer: a `Cache`, or an object with the same `append` and
# `allocate`, such as the running sums of `attention/linear.py`.
CacheState = Any


# The position of a key without one. Local attention always attends to such keys.
NO_POSITION = -(2**30)


class KeyValues(struct.PyTreeNode):
    """Keys and values in the compute dtype, with int32 positions.

    The length is the last axis, so that the products of attention read contiguous
    memory.

    Attributes:
      key_BGKS: Keys of G heads, of width K, of S tokens.
      value_BGUS: Values of width U.
      positions_BS: int32 position of each token.
      features_BHS: Result of the attention's `key_features`, by default None.
    """

    key_BGKS: jax.Array
    value_BGUS: jax.Array
    positions_BS: jax.Array
    features_BHS: jax.Array | None = None

    def followed_by(self, others: 'KeyValues') -> 'KeyValues':
        """Concatenates two sets of keys and values of the same text."""
        return jax.tree.map(lambda *x: jnp.concatenate(x, -1), self, others)


class BeamState(struct.PyTreeNode):
    """The visible past of each of a sentence's N hypotheses at one decoding step.

    A cache has N slots per step: hypothesis n of step t is in slot t · N + n. A
    hypothesis sees the slots that its parent saw, and its own.

    Attributes:
      step: int32 scalar, the position of the current tokens.
      parent_BN: int32, the previous hypothesis that each hypothesis continues.
      visible_BNS: bool, the slots that each hypothesis sees, including its own.
    """

    step: jax.Array
    parent_BN: jax.Array
    visible_BNS: jax.Array

    @property
    def num_hypotheses(self) -> int:
        return self.visible_BNS.shape[1]

    def slot_positions(self) -> jax.Array:
        """Returns the step at which each slot was written, int32 (1, slots)."""
        slots = self.visible_BNS.shape[2]
        return jnp.arange(slots, dtype=jnp.int32)[None] // self.num_hypotheses


class Cache(struct.PyTreeNode):
    """The key/value cache of one attention layer.

    Attributes:
      slots: Keys and values of the prefix that all hypotheses share, then those of the
        generated tokens, in the slots of `BeamState`.
      prefix_length: Slots of the prefix; 0 in an encoder-decoder.
    """

    slots: KeyValues
    prefix_length: int = struct.field(pytree_node=False)

    @classmethod
    def starting_with(cls, prefix: KeyValues) -> Self:
        """Returns the cache of a prefix, without slots for generated tokens."""
        return cls(prefix, prefix.positions_BS.shape[-1])

    def append(self, new: KeyValues, beam: BeamState) -> tuple[Self, KeyValues]:
        """Writes the N new tokens to the slots of their step.

        Returns:
          The new cache, and all of its keys and values, the prefix first.
        """
        slot = self.prefix_length + beam.step * beam.num_hypotheses

        def write(old, value):
            value = value.astype(old.dtype)
            return jax.lax.dynamic_update_slice_in_dim(old, value, slot, axis=-1)

        slots = jax.tree.map(write, self.slots, new)
        return self.replace(slots=slots), slots

    def allocate(self, hypotheses: int, tokens: int) -> Self:
        """Adds empty slots for up to `tokens` tokens per hypothesis."""
        total = self.prefix_length + hypotheses * tokens

        def extend(x):
            *others, slots = x.shape
            padding = [(0, 0)] * len(others)
            padding.append((0, total - slots))
            return jnp.pad(x, padding)

        return self.replace(slots=jax.tree.map(extend, self.slots))


class LayersCache(struct.PyTreeNode):
    """The stacked caches of a stack, with an axis of layers after the batch axis."""

    caches: CacheState

    def allocate(self, hypotheses: int, tokens: int) -> Self:

        def extend(cache):
            return cache.allocate(hypotheses, tokens)

        return self.replace(caches=jax.vmap(extend, 1, 1)(self.caches))


def with_float32_slots(state: Any) -> Any:
    """Returns a decoding state whose caches hold bfloat16 values as float32.

    On CPU, XLA can't update bfloat16 in place.
    """

    def widen(x):
        return x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x

    def convert(x):
        return jax.tree.map(widen, x) if isinstance(x, Cache) else x

    return jax.tree.map(convert, state, is_leaf=lambda x: isinstance(x, Cache))


def gather_beams(x_BN: jax.Array, index_BM: jax.Array) -> jax.Array:
    """Selects hypotheses by index: x[b, index[b, m]]. More axes may follow N.

    Examples:
      >>> gather_beams(jnp.array([[10, 11, 12]]), jnp.array([[2, 0]])).tolist()
      [[12, 10]]
    """
    return jax.vmap(lambda x_N, index_M: x_N[index_M])(x_BN, index_BM)


def tile_beams(hypotheses: int, tree: Any) -> Any:
    """Repeats a state shared by a sentence's hypotheses: B1… → BN….

    Arrays that already have N hypotheses are unchanged.

    Examples:
      >>> tile_beams(3, jnp.array([[7]])).tolist()
      [[7, 7, 7]]
    """
    return jax.tree.map(lambda x: jnp.repeat(x, hypotheses // x.shape[1], 1), tree)

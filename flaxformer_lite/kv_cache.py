"""Keys and values as attention reads them, and the cache that decoding keeps of them.

A cache is a value: `append` returns a new one. It is append-only. What the N hypotheses
of a sentence are fed at step i goes to the slots i·N … i·N + N − 1 and is never moved;
a visibility mask says which slots belong to the past of which hypothesis. So beams are
reordered by changing a mask of booleans, and no keys or values are gathered.
"""

import contextlib
from typing import Any, Self

import jax
import jax.numpy as jnp
from flax import struct

# What one layer carries from step to step: a `Cache`, or anything with its `append` and
# `allocate`, such as the running sums of `attention/linear.py`.
CacheState = Any


# The position of a key that has none, and is near every query.
NO_POSITION = -(2**30)


class KeyValues(struct.PyTreeNode):
    """Keys and values in the compute dtype, with the int32 positions of their tokens.

    Those of a cache may be float32 instead, which holds the same values.

    The length is the last axis, so that both products of attention read memory in
    order. On CPU this makes a decoding step several times faster.
    """

    key_BGKS: jax.Array
    value_BGUS: jax.Array
    positions_BS: jax.Array

    def followed_by(self, others: 'KeyValues') -> 'KeyValues':
        """These and then the others, as those of one text."""
        return jax.tree.map(lambda *x: jnp.concatenate(x, -1), self, others)


class BeamState(struct.PyTreeNode):
    """Which past each of the N hypotheses of a sentence has, at one decoding step.

    Attributes:
      step: int32 scalar, the position of the tokens that are fed now.
      parent_BN: int32, the hypothesis of the step before that each one continues.
      visible_BNS: bool, the slots of its own past and of itself, for each hypothesis.
    """

    step: jax.Array
    parent_BN: jax.Array
    visible_BNS: jax.Array

    @property
    def num_hypotheses(self) -> int:
        return self.visible_BNS.shape[1]

    def slot_positions(self) -> jax.Array:
        """The step at which each slot was written, int32 (1, slots)."""
        slots = self.visible_BNS.shape[2]
        return jnp.arange(slots, dtype=jnp.int32)[None] // self.num_hypotheses


class Cache(struct.PyTreeNode):
    """The keys and values that one attention layer keeps while it decodes.

    Attributes:
      prefix: of the tokens that all hypotheses of a sentence begin with. In an
        encoder-decoder there are none.
      generated: of the tokens generated so far, in the slots that `BeamState`
        describes.
    """

    prefix: KeyValues
    generated: KeyValues

    @classmethod
    def starting_with(cls, prefix: KeyValues) -> Self:
        """A cache of a prefix, with no slots yet."""
        prefix = jax.tree.map(_as_kept, prefix)
        return cls(prefix, jax.tree.map(lambda x: x[..., :0], prefix))

    def append(self, new: KeyValues, beam: BeamState) -> tuple[Self, KeyValues]:
        """Writes the N new tokens to the slots of their step.

        Returns:
          The new cache, and all keys and values in it: the prefix, then the slots.
        """
        slot = beam.step * beam.num_hypotheses

        def write(old, value):
            value = value.astype(old.dtype)
            return jax.lax.dynamic_update_slice_in_dim(old, value, slot, axis=-1)

        def after_prefix(prefix, generated):
            if prefix.shape[-1] == 0:
                return generated
            return jnp.concatenate([prefix, generated], -1)

        generated = jax.tree.map(write, self.generated, new)
        everything = jax.tree.map(after_prefix, self.prefix, generated)
        return self.replace(generated=generated), everything

    def allocate(self, hypotheses: int, tokens: int) -> Self:
        """Adds empty slots, up to so many tokens of each hypothesis."""

        def extend(x):
            *others, slots = x.shape
            padding = [(0, 0)] * len(others)
            padding.append((0, hypotheses * tokens - slots))
            return jnp.pad(x, padding)

        return self.replace(generated=jax.tree.map(extend, self.generated))


# As in `ops/choose.py`: JAX traces a function again where this has changed.
_are_float32 = jax.make_user_context(False)


def float32_slots(are: bool = True) -> contextlib.AbstractContextManager[Any]:
    """Within it, a cache that begins holds bfloat16 as float32: the same values.

    For a CPU's programs. XLA cannot write bfloat16 in place there: at each step it
    would convert all slots to float32 and back, for longer than bfloat16's products
    save. It decides when a function is traced, for that does not know its platform.
    """
    return _are_float32(are)


def _as_kept(x: jax.Array) -> jax.Array:
    """In the dtype of a cache's slots."""
    if x.dtype == jnp.bfloat16 and _are_float32.value:
        return x.astype(jnp.float32)
    return x


class LayersCache(struct.PyTreeNode):
    """The caches of all layers of a stack as one.

    Attributes:
      caches: a layer's, whose arrays have an axis of layers behind that of sentences.
    """

    caches: CacheState

    def allocate(self, hypotheses: int, tokens: int) -> Self:
        """Adds empty slots to each layer's, up to so many tokens of each hypothesis."""

        def extend(cache):
            return cache.allocate(hypotheses, tokens)

        return self.replace(caches=jax.vmap(extend, 1, 1)(self.caches))


def gather_beams(x_BN: jax.Array, index_BM: jax.Array) -> jax.Array:
    """Selects hypotheses by index: x[b, index[b, m]]. More axes may follow N."""
    return jax.vmap(lambda x_N, index_M: x_N[index_M])(x_BN, index_BM)


def tile_beams(hypotheses: int, tree: Any) -> Any:
    """Repeats a state that all hypotheses of a sentence start from: B1… → BN….

    What is there for each hypothesis already stays as it is.
    """
    return jax.tree.map(lambda x: jnp.repeat(x, hypotheses // x.shape[1], 1), tree)

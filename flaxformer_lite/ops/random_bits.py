"""Random 32-bit words for dropout masks."""

import jax
import jax.numpy as jnp

from flaxformer_lite.ops.choose import choose
from flaxformer_lite.sharding import all_rows, first_row


def random_bits(
    key: jax.Array, shape: tuple[int, ...], of_rows: bool = False
) -> jax.Array:
    """uint32 words, uniform over all 2³², by the key and the index alone.

    Args:
      key: a random key.
      shape: of the words.
      of_rows: whether the first axis is the rows of a batch. A device that sees but its
        own rows (`sharding.sum_over_data`) has their words of those of all rows.
    """
    chosen = choose(
        lambda key: reference(key, shape, of_rows),
        lambda key: tuned(key, shape, of_rows),
    )
    return chosen(key)


def reference(
    key: jax.Array, shape: tuple[int, ...], of_rows: bool = False
) -> jax.Array:
    """JAX's own generator, threefry."""
    if not of_rows:
        return jax.random.bits(key, shape, jnp.uint32)
    own, *others = shape
    words = jax.random.bits(key, (all_rows(own), *others), jnp.uint32)
    return jax.lax.dynamic_slice_in_dim(words, first_row(own), own)


def tuned(key: jax.Array, shape: tuple[int, ...], of_rows: bool = False) -> jax.Array:
    """A hash of each element's index and the key: other words of the same distribution.

    Two rounds, with a word of the key before each. It fuses into the operation that
    reads it, where threefry takes a third of a training step on CPU. It is the same on
    every backend and under every sharding. Good for dropout, not for cryptography.
    """
    first, second = jax.random.bits(key, (2,), jnp.uint32)
    index = jnp.zeros(shape, jnp.uint32)
    for axis, size in enumerate(shape):
        along_axis = jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
        if of_rows and axis == 0:
            along_axis += jnp.uint32(first_row(size))
        index = index * jnp.uint32(size) + along_axis
    words = _mix(index ^ first)
    return _mix(words ^ second)


def _mix(x: jax.Array) -> jax.Array:
    """A bijection of 32-bit words: each input bit flips every output bit half the time.

    Its constants were found by search (Wellons, "Prospecting for Hash Functions",
    2018).
    """
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)

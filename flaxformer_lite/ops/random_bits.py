"""Random 32-bit words for dropout masks."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from flaxformer_lite.ops.choose import choose
from flaxformer_lite.sharding import all_rows, first_row


def random_bits(
    key: jax.Array, shape: tuple[int, ...], of_rows: bool = False
) -> jax.Array:
    """Returns uint32 words, uniform over all 2³², as a function of key and index.

    Args:
      of_rows: Whether axis 0 is the rows of a batch. A device that sees only its own
        rows (`sharding.sum_over_data`) then draws the same words as without sharding.

    Examples:
      >>> words = random_bits(jax.random.key(0), (2, 3))
      >>> words.shape, words.dtype
      ((2, 3), dtype('uint32'))
    """
    chosen = choose(
        lambda key: reference(key, shape, of_rows),
        lambda key: tuned(key, shape, of_rows),
    )
    return chosen(key)


def reference(
    key: jax.Array, shape: tuple[int, ...], of_rows: bool = False
) -> jax.Array:
    """Uses threefry, JAX's default generator."""
    if not of_rows:
        return jax.random.bits(key, shape, jnp.uint32)
    own, *others = shape
    words = jax.random.bits(key, (all_rows(own), *others), jnp.uint32)
    return jax.lax.dynamic_slice_in_dim(words, first_row(own), own)


def tuned(key: jax.Array, shape: tuple[int, ...], of_rows: bool = False) -> jax.Array:
    """Hashes the key and each element's index: other words of the same distribution.

    Two rounds each mix in one word of the key. The hash fuses into its consumer, unlike
    threefry, and doesn't depend on backend or sharding. It suits dropout, not
    cryptography.
    """
    sizes = list(shape)
    coordinates = [
        jax.lax.broadcasted_iota(jnp.uint32, shape, axis) for axis in range(len(shape))
    ]
    if of_rows:
        sizes[0] = all_rows(shape[0])
        coordinates[0] += jnp.uint32(first_row(shape[0]))
    return words_at(key, sizes, coordinates)


def words_at(
    key: jax.Array, sizes: Sequence[int], coordinates: Sequence[jax.Array]
) -> jax.Array:
    """Returns the words of some elements of an array, given their uint32 coordinates.

    32 bits number the elements of a block. Each block has its own second key.
    """
    first, second = jax.random.bits(key, (2,), jnp.uint32)
    block = index = jnp.uint32(0)
    for axis, (size, along_axis) in enumerate(zip(sizes, coordinates, strict=True)):
        if math.prod(sizes[axis:]) > 2**32:
            block = block * jnp.uint32(size) + along_axis
        else:
            index = index * jnp.uint32(size) + along_axis
    words = mix(index ^ first)
    return mix(words ^ second ^ mix(block))


def mix(x: jax.Array) -> jax.Array:
    """Maps 32-bit words one to one; each input bit flips each output bit half the time.

    Constants: Wellons, "Prospecting for Hash Functions", 2018.
    """
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)

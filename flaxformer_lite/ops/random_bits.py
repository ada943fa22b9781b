"""Random 32-bit words for dropout masks."""

import jax
import jax.numpy as jnp

from flaxformer_lite.ops.choose import choose


def random_bits(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """uint32 words, uniform over all 2³², by the key and the index alone."""
    chosen = choose(lambda key: reference(key, shape), lambda key: tuned(key, shape))
    return chosen(key)


def reference(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """JAX's own generator, threefry."""
    return jax.random.bits(key, shape, jnp.uint32)


def tuned(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """A hash of each element's index and the key: other words of the same distribution.

    Two rounds, with a word of the key before each. It fuses into the operation that
    reads it, where threefry takes a third of a training step on CPU. It is the same on
    every backend and under every sharding. Good for dropout, not for cryptography.
    """
    first, second = jax.random.bits(key, (2,), jnp.uint32)
    index = jnp.zeros(shape, jnp.uint32)
    for axis, size in enumerate(shape):
        along_axis = jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
        index = index * jnp.uint32(size) + along_axis
    return _mix(_mix(index ^ first) ^ second)


def _mix(x: jax.Array) -> jax.Array:
    """A bijection of 32-bit words: each input bit flips every output bit half the time.

    Its constants were found by search (Wellons, "Prospecting for Hash Functions",
    2018).
    """
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)

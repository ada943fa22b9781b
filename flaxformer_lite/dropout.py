"""Dropout (paper §5.4), on exactly when a dropout key is given."""

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.ranges import Checked, Rate


def _mix(x):
    """A bijection of 32-bit words in which each input bit flips every output bit half the time
    (Wellons, "Prospecting for Hash Functions", 2018, whose constants were found by search)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def random_words(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """uint32 words, each a hash of its index and the key: the same on every backend and sharding.

    Two rounds with a word of the key before each. It fuses into whatever reads it, where threefry
    costs a third of a training step on CPU; good for dropout, not for cryptography.
    """
    first, second = jax.random.bits(key, (2,), jnp.uint32)
    index = jnp.zeros(shape, jnp.uint32)
    for axis, size in enumerate(shape):
        index = index * jnp.uint32(size) + jax.lax.broadcasted_iota(
            jnp.uint32, shape, axis
        )
    return _mix(_mix(index ^ first) ^ second)


@functools.partial(
    jax.jit, static_argnums=(1, 2), inline=True
)  # traced once for a shape
def kept(key: jax.Array, shape: tuple[int, ...], rate: float) -> jax.Array:
    """True with probability 1 − rate."""
    return random_words(key, shape) >= jnp.uint32(round(rate * 2**32))


class Dropout(Checked, nn.Module):
    """x with each element zeroed with probability `rate` and the others divided by 1 − rate.

    Along axes that are `shared` elements live and die together: (-1,) for whole tokens of x_BTD,
    (1, 3) for whole heads of y_BTHU.
    """

    rate: Rate
    shared: tuple[int, ...] = ()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        if self.rate == 0 or not self.has_rng('dropout'):
            return x
        shared = [axis % x.ndim for axis in self.shared]
        shape = tuple(1 if axis in shared else n for axis, n in enumerate(x.shape))
        return jnp.where(
            kept(self.make_rng('dropout'), shape, self.rate), x / (1 - self.rate), 0
        )


class Skip(Checked, nn.Module):
    """A whole layer left out (Fan et al. 2020, "LayerDrop"): x instead of its result y.

    With probability `rate` where a dropout key is given, the same for all of a batch; and wherever
    the collection `switches` says so.
    """

    rate: Rate = 0.0

    @nn.compact
    def __call__(self, x_BTD: jax.Array, y_BTD: jax.Array) -> jax.Array:
        if self.has_variable('switches', 'keep'):
            y_BTD = jnp.where(self.get_variable('switches', 'keep'), y_BTD, x_BTD)
        if not self.rate or not self.has_rng('dropout'):
            return y_BTD
        return jnp.where(
            kept(self.make_rng('dropout'), (1, 1, 1), self.rate), y_BTD, x_BTD
        )

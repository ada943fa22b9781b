"""Dropout (paper §5.4), active exactly when a dropout key is given."""

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.ops.random_bits import random_bits
from flaxformer_lite.validation import Checked, Rate


# Traced once per shape and rate.
@functools.partial(jax.jit, static_argnums=(1, 2, 3), inline=True)
def keep_mask(
    key: jax.Array, shape: tuple[int, ...], rate: float, of_rows: bool = False
) -> jax.Array:
    """Returns bools, True with probability 1 − rate; `of_rows` as in `random_bits`."""
    return random_bits(key, shape, of_rows) >= jnp.uint32(round(rate * 2**32))


class Dropout(Checked, nn.Module):
    """Dropout: zeroes elements with probability `rate`, divides the others by 1 − rate.

    Axis 0 of x is the batch. Sharding doesn't change masks.

    Attributes:
      shared_axes: Axes that share a mask: (-1,) drops whole tokens of x_BTD, (1, 3)
        whole heads of y_BTHU.

    Raises:
      ValueError: The rate is outside [0, 1).

    Examples:
      >>> x_BTD = jnp.ones((1, 50, 40))
      >>> rngs = {'dropout': jax.random.key(0)}
      >>> print(jnp.unique(Dropout(0.2).apply({}, x_BTD, rngs=rngs)))
      [0.   1.25]
    """

    rate: Rate
    shared_axes: tuple[int, ...] = ()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        if self.rate == 0 or not self.has_rng('dropout'):
            return x
        shape = list(x.shape)
        for axis in self.shared_axes:
            shape[axis] = 1
        keep = keep_mask(self.make_rng('dropout'), tuple(shape), self.rate, True)
        return jnp.where(keep, x / (1 - self.rate), 0)


class LayerDrop(Checked, nn.Module):
    """LayerDrop (Fan et al. 2020): replaces the output y of a layer by its input x.

    The whole batch skips the layer with probability `rate`.
    """

    rate: Rate = 0.0

    def __call__(self, x_BTD: jax.Array, y_BTD: jax.Array) -> jax.Array:
        mask = self.mask()
        if mask is None:
            return y_BTD
        return jnp.where(mask, y_BTD, x_BTD)

    def mask(self, *layers: int) -> jax.Array | None:
        """Returns which layers to keep, bool (*layers, 1, 1, 1), or None for all.

        Without arguments it decides for one layer; the result has no layer axis.
        """
        if self.rate == 0 or not self.has_rng('dropout'):
            return None
        return keep_mask(self.make_rng('dropout'), (*layers, 1, 1, 1), self.rate)

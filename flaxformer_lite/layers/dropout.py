"""Dropout (paper §5.4), on exactly when a dropout key is given."""

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.ops.random_bits import random_bits
from flaxformer_lite.ranges import Checked, Rate


# Traced once for each shape and rate.
@functools.partial(jax.jit, static_argnums=(1, 2, 3), inline=True)
def keep_mask(
    key: jax.Array, shape: tuple[int, ...], rate: float, of_rows: bool = False
) -> jax.Array:
    """bool, each True with probability 1 − rate; `of_rows` as in `random_bits`."""
    return random_bits(key, shape, of_rows) >= jnp.uint32(round(rate * 2**32))


class Dropout(Checked, nn.Module):
    """Each element is 0 with probability `rate`, else divided by 1 − rate.

    The first axis of x is the rows of a batch, by whose numbers it draws.

    Attributes:
      rate: in [0, 1).
      shared_axes: along these, elements are dropped together: (-1,) for whole tokens of
        x_BTD, (1, 3) for whole heads of y_BTHU.

    Raises:
      ValueError: the rate is not in [0, 1).
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
    """Skips a whole layer (Fan et al. 2020): its input x instead of its output y.

    It does so with probability `rate` where a dropout key is given, the same for all of
    a batch; and wherever the collection `ablation_masks` says so.
    """

    rate: Rate = 0.0

    def __call__(self, x_BTD: jax.Array, y_BTD: jax.Array) -> jax.Array:
        keep = self.keep()
        if keep is None:
            return y_BTD
        return jnp.where(keep, y_BTD, x_BTD)

    def keep(self, *layers: int) -> jax.Array | None:
        """Whether each of so many layers is kept, bool (*layers, 1, 1, 1).

        By default of one layer, without an axis for them. None where all are kept.
        """
        shape = (*layers, 1, 1, 1)
        keep = None
        if self.has_variable('ablation_masks', 'keep'):
            mask = self.get_variable('ablation_masks', 'keep')
            keep = mask.reshape(shape) != 0
        if self.rate == 0 or not self.has_rng('dropout'):
            return keep
        drawn = keep_mask(self.make_rng('dropout'), shape, self.rate)
        if keep is None:
            return drawn
        return keep & drawn

"""Dynamic loss scaling for training in float16 (Micikevicius et al. 2018, §3.2)."""

import jax
import jax.numpy as jnp
from flax import struct

from flaxformer_lite.models.base import Model

# Gradients are those of a sum over tokens, not of a mean, so they need less scaling
# than the 2¹⁵ that is common for means.
INITIAL = 2.0**10
LARGEST = 2.0**24
GROWTH_INTERVAL = 2000


class LossScale(struct.PyTreeNode):
    """Dynamic loss scale that keeps gradients in the range of float16.

    An update that is not finite halves the scale; 2,000 finite updates in a row double
    it. Scales are powers of two.

    Attributes:
      scale: float32, at least 1.
      finite_updates: int32, finite updates since the scale last changed.
    """

    scale: jax.Array
    finite_updates: jax.Array

    @classmethod
    def for_model(cls, model: Model) -> 'LossScale | None':
        """Returns the initial scale for a float16 model; None for other dtypes."""
        if model.dense.dtype != jnp.float16:
            return None
        return cls(jnp.float32(INITIAL), jnp.zeros((), jnp.int32))

    def adjusted(self, is_finite: jax.Array) -> 'LossScale':
        count = jnp.where(is_finite, self.finite_updates + 1, 0)
        grows = count == GROWTH_INTERVAL
        grown = jnp.where(grows, jnp.minimum(2 * self.scale, LARGEST), self.scale)
        scale = jnp.where(is_finite, grown, jnp.maximum(self.scale / 2, 1))
        return LossScale(scale, jnp.where(grows, 0, count))

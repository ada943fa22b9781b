"""What norms have in common: γ ⊙ x̂ + β, learned for each feature."""

import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.ranges import Checked
from flaxformer_lite.shapes import Valid


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def unit(x: jax.Array, epsilon: float, centered: bool = False) -> jax.Array:
    """x̂ = x / √(E x² + ε) over the last axis, of x − E x if `centered`.

    Its gradient, (g − x̂ E(g x̂)) / √(E x² + ε) and that less its mean, needs the result and the
    root alone.
    """
    return _unit(x, epsilon, centered)[0]


def _unit(x, epsilon, centered):
    x = x - x.mean(-1, keepdims=True) if centered else x
    r = jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + epsilon)
    return x * r, (x * r, r)


def _unit_backward(epsilon, centered, kept, g):
    x, r = kept
    dx = g - x * (g * x).mean(-1, keepdims=True)
    # The mean of x̂ is 0: that of g alone is to be taken away.
    return (r * (dx - g.mean(-1, keepdims=True)) if centered else r * dx,)


unit.defvjp(_unit, _unit_backward)


class Norm(Checked, nn.Module):
    """x̂ · γ + β, float32. A variant says what x̂ is."""

    biased: ClassVar[bool] = True  # False leaves out β

    def normalized(self, x_BTD: jax.Array, valid_BT: Valid) -> jax.Array:
        """x̂ of float32 x; padding is where `valid_BT` is False."""
        raise NotImplementedError

    @nn.compact
    def __call__(self, x_BTD: jax.Array, valid_BT: Valid = None) -> jax.Array:
        x_BTD = self.normalized(x_BTD.astype(jnp.float32), valid_BT)
        features, init = x_BTD.shape[-1:], nn.initializers
        x_BTD *= self.param('scale', init.ones, features)[None, None]
        return (
            x_BTD + self.param('bias', init.zeros, features)[None, None]
            if self.biased
            else x_BTD
        )

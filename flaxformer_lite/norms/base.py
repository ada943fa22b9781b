"""What norms have in common: γ ⊙ x̂ + β, learned for each feature."""

import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.shapes import Valid


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def unit(x: jax.Array, epsilon: float) -> jax.Array:
    """x̂ = x / √(E x² + ε) over the last axis.

    Its gradient, (g − x̂ E(g x̂)) / √(E x² + ε), needs the result and the root alone.
    """
    return _unit(x, epsilon)[0]


def _unit(x, epsilon):
    r = jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + epsilon)
    return x * r, (x * r, r)


def _unit_backward(epsilon, kept, g):
    x, r = kept
    return (r * (g - x * (g * x).mean(-1, keepdims=True)),)


unit.defvjp(_unit, _unit_backward)


class Norm(nn.Module):
    """x̂ · γ + β, float32. A variant says what x̂ is."""

    biased: ClassVar[bool] = True  # False leaves out β

    def normalized(self, x_BTD: jax.Array, valid_BT: Valid) -> jax.Array:
        """x̂ of float32 x; padding is where `valid_BT` is False."""
        raise NotImplementedError

    @nn.compact
    def __call__(self, x_BTD: jax.Array, valid_BT: Valid = None) -> jax.Array:
        x_BTD = self.normalized(x_BTD.astype(jnp.float32), valid_BT)
        features, init = x_BTD.shape[-1:], nn.initializers
        x_BTD *= self.param('scale', init.ones_init(), features)[None, None]
        if self.biased:
            x_BTD += self.param('bias', init.zeros_init(), features)[None, None]
        return x_BTD

"""Layer normalisation (Ba et al. 2016; paper §3.1)."""

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.shapes import Valid


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def standardized(x: jax.Array, epsilon: float) -> jax.Array:
    """(x − E x) / √(Var x + ε) over the last axis.

    Its gradient, (g − E g − x̂ E(g x̂)) / √(Var x + ε), needs the result x̂ and the root alone.
    """
    return _standardize(x, epsilon)[0]


def _standardize(x, epsilon):
    x = x - x.mean(-1, keepdims=True)
    r = jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + epsilon)
    x = x * r
    return x, (x, r)


def _standardized_backward(epsilon, kept, g):
    x, r = kept
    return (r * (g - g.mean(-1, keepdims=True) - x * (g * x).mean(-1, keepdims=True)),)


standardized.defvjp(_standardize, _standardized_backward)


class Layer(nn.Module):
    """(x − E x) / √(Var x + ε) · γ + β over features, the variance biased, in float32."""

    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, x_BTD: jax.Array, valid_BT: Valid = None) -> jax.Array:
        x_BTD = x_BTD.astype(jnp.float32)
        scale_D = self.param('scale', nn.initializers.ones_init(), x_BTD.shape[-1:])
        bias_D = self.param('bias', nn.initializers.zeros_init(), x_BTD.shape[-1:])
        x_BTD = standardized(x_BTD, self.epsilon)
        return x_BTD * scale_D[None, None] + bias_D[None, None]

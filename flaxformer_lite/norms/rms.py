"""Root mean square normalisation (Zhang and Sennrich 2019)."""

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.shapes import Valid


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def scaled(x: jax.Array, epsilon: float) -> jax.Array:
    """x / √(E x² + ε) over the last axis.

    Its gradient, (g − x̂ E(g x̂)) / √(E x² + ε), needs the result x̂ and the root alone.
    """
    return _scale(x, epsilon)[0]


def _scale(x, epsilon):
    r = jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + epsilon)
    x = x * r
    return x, (x, r)


def _scaled_backward(epsilon, kept, g):
    x, r = kept
    return (r * (g - x * (g * x).mean(-1, keepdims=True)),)


scaled.defvjp(_scale, _scaled_backward)


class Rms(nn.Module):
    """x / √(E x² + ε) · γ over features, in float32."""

    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, x_BTD: jax.Array, valid_BT: Valid = None) -> jax.Array:
        x_BTD = x_BTD.astype(jnp.float32)
        scale_D = self.param('scale', nn.initializers.ones_init(), x_BTD.shape[-1:])
        return scaled(x_BTD, self.epsilon) * scale_D[None, None]

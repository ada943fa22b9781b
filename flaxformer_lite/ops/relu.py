"""Rectified linear unit (paper §3.3) whose gradient depends only on its result."""

import jax
import jax.numpy as jnp

from flaxformer_lite.ops.choose import choose


def reference(x: jax.Array) -> jax.Array:
    """Returns max(0, x)."""
    return jax.nn.relu(x)


@jax.custom_vjp
def tuned(x: jax.Array) -> jax.Array:
    """Computes the gradient from the result, which the next product stores anyway."""
    return reference(x)


def _forward(x):
    y = tuned(x)
    return y, y


def _backward(y, g):
    return (jnp.where(y > 0, g, 0),)


tuned.defvjp(_forward, _backward)

relu = choose(reference, tuned)

"""The rectified linear unit (paper §3.3), with its gradient read from its result."""

import jax
import jax.numpy as jnp

from flaxformer_lite.ops.choose import choose


def reference(x: jax.Array) -> jax.Array:
    """max(0, x)."""
    return jax.nn.relu(x)


@jax.custom_vjp
def tuned(x: jax.Array) -> jax.Array:
    """The same. Where the result is above 0, there x is.

    The next product keeps the result for its own gradient. So nothing is kept for this
    one, and no pass over x finds its signs.
    """
    return reference(x)


def _forward(x):
    y = tuned(x)
    return y, y


def _backward(y, g):
    return (jnp.where(y > 0, g, 0),)


tuned.defvjp(_forward, _backward)

relu = choose(reference, tuned)

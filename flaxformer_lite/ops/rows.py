"""The sum of a matrix's rows, which is the gradient of a vector added to each."""

import jax
import jax.numpy as jnp

from flaxformer_lite.ops.choose import choose


def reference(x_ND: jax.Array) -> jax.Array:
    """Σ_n x_nd, float32, of a float32 matrix."""
    return x_ND.sum(0)


def on_cpu(x_ND: jax.Array) -> jax.Array:
    """The same, as a product with ones.

    XLA's own kernel takes 84 ms on two cores for 512 rows of 32,000, three quarters of
    the time of the logits' product, and this one 3. For rows of a few hundred it does
    not pay: a step of a small model takes as long with either.
    """
    return jax.lax.dot(jnp.ones(len(x_ND), x_ND.dtype), x_ND)


sum_rows = choose(reference, on_cpu, only_on='cpu')

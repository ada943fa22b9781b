"""Products of attention: operands in the compute dtype, sums and results in float32."""

import functools

import jax
import jax.numpy as jnp

from flaxformer_lite.ops.choose import choose


def einsum(
    subscripts: str, x: jax.Array, y: jax.Array, exact: bool = False
) -> jax.Array:
    """Returns the float32 sum over letters that are missing in the result.

    Args:
      subscripts: Such as 'bthk,bhks->bhts'. Each letter occurs in two of the terms.
      x, y: Operands of one dtype; either may be float32. Gradients have their dtypes.
      exact: Whether the gradient of x uses the unrounded incoming gradient.

    Examples:
      >>> q_BTHK, key_BHKS = jnp.ones((1, 2, 4, 8)), jnp.ones((1, 4, 8, 3))
      >>> einsum('bthk,bhks->bhts', q_BTHK, key_BHKS).shape
      (1, 4, 2, 3)
    """
    if jnp.float32 in (x.dtype, y.dtype):
        return reference(subscripts, x, y)  # nothing to round
    chosen = choose(
        functools.partial(reference, subscripts),
        lambda x, y: tuned(subscripts, x, y, exact),
    )
    return chosen(x, y)


def reference(subscripts: str, x: jax.Array, y: jax.Array) -> jax.Array:
    """Returns the float32 sum."""
    return jnp.einsum(subscripts, x, y, preferred_element_type=jnp.float32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 3))
def tuned(
    subscripts: str, x: jax.Array, y: jax.Array, exact: bool = False
) -> jax.Array:
    """Computes both gradients as products in the operands' dtype, as `matmul.tuned`.

    With `exact`, a second product adds the remainder of the rounding.
    """
    return reference(subscripts, x, y)


def _forward(subscripts, x, y, exact):
    # Not `tuned`, so that a policy of `jax.checkpoint` recognizes the product.
    return reference(subscripts, x, y), (x, y)


def _backward(subscripts, exact, operands, g):
    x, y = operands
    terms, of_result = subscripts.split('->')
    of_x, of_y = terms.split(',')
    to_x = f'{of_result},{of_y}->{of_x}'
    rounded = g.astype(x.dtype)
    dx = reference(to_x, rounded, y)
    if exact:
        # XLA may elide a conversion and its inverse, but not `reduce_precision`.
        bits = jnp.finfo(x.dtype)
        remainder = g - jax.lax.reduce_precision(g, bits.nexp, bits.nmant)
        dx += reference(to_x, remainder.astype(x.dtype), y)
    dy = reference(f'{of_x},{of_result}->{of_y}', x, rounded)
    return dx.astype(x.dtype), dy.astype(y.dtype)


tuned.defvjp(_forward, _backward)

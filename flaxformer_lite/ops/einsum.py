"""Products of attention: operands in the compute dtype, sums and results in float32."""

import functools

import jax
import jax.numpy as jnp

from flaxformer_lite.ops.choose import choose


def einsum(
    subscripts: str, x: jax.Array, y: jax.Array, exact: bool = False
) -> jax.Array:
    """The sum over letters that are not in the result, float32.

    Args:
      subscripts: such as 'bthk,bhks->bhts'; each letter stands in two of the terms.
      x, y: of one dtype, which is that of their gradients; or one of them float32.
      exact: computes the gradient of x from the unrounded incoming gradient, by two
        products instead of one.
    """
    if jnp.float32 in (x.dtype, y.dtype):
        return reference(subscripts, x, y)  # there is nothing to round
    chosen = choose(
        functools.partial(reference, subscripts),
        lambda x, y: tuned(subscripts, x, y, exact),
    )
    return chosen(x, y)


def reference(subscripts: str, x: jax.Array, y: jax.Array) -> jax.Array:
    """The formula; its gradients are products of float32 and the operands' dtype."""
    return jnp.einsum(subscripts, x, y, preferred_element_type=jnp.float32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 3))
def tuned(
    subscripts: str, x: jax.Array, y: jax.Array, exact: bool = False
) -> jax.Array:
    """The same. Both gradients are products of the operands' dtype, too.

    The incoming float32 gradient is rounded to it first, as `matmul.tuned` does. If
    `exact`, what rounding takes away is multiplied as well.
    """
    return reference(subscripts, x, y)


def _forward(subscripts, x, y, exact):
    # Not `tuned`: so a policy of `jax.checkpoint` sees that it is a product.
    return reference(subscripts, x, y), (x, y)


def _backward(subscripts, exact, operands, g):
    x, y = operands
    terms, of_result = subscripts.split('->')
    of_x, of_y = terms.split(',')
    to_x = f'{of_result},{of_y}->{of_x}'
    rounded = g.astype(x.dtype)
    dx = reference(to_x, rounded, y)
    if exact:
        # XLA may leave out a conversion and its inverse, but not `reduce_precision`.
        bits = jnp.finfo(x.dtype)
        remainder = g - jax.lax.reduce_precision(g, bits.nexp, bits.nmant)
        dx += reference(to_x, remainder.astype(x.dtype), y)
    dy = reference(f'{of_x},{of_result}->{of_y}', x, rounded)
    return dx.astype(x.dtype), dy.astype(y.dtype)


tuned.defvjp(_forward, _backward)

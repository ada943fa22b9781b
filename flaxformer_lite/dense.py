"""Linear maps: operands in the compute dtype, products summed and returned in float32."""

import math

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from flaxformer_lite.init.base import Init
from flaxformer_lite.init.xavier import Xavier


@jax.custom_vjp
def product(x_ND: jax.Array, w_DF: jax.Array) -> jax.Array:
    """x @ w in float32, whatever the operands' (common) dtype.

    Its gradients are products of the same kind: the incoming float32 gradient is rounded to the
    operands' dtype, so that all three products of a layer run on the fast bfloat16 units.
    """
    return jnp.matmul(x_ND, w_DF, preferred_element_type=jnp.float32)


def _product_backward(operands, g_NF):
    x_ND, w_DF = operands
    g_NF = g_NF.astype(x_ND.dtype)
    dx_ND = jnp.einsum('nf,df->nd', g_NF, w_DF, preferred_element_type=jnp.float32)
    return dx_ND.astype(x_ND.dtype), sum_of_rows(x_ND, g_NF).astype(w_DF.dtype)


product.defvjp(
    lambda x_ND, w_DF: (product(x_ND, w_DF), (x_ND, w_DF)), _product_backward
)


def sum_of_rows(x_ND: jax.Array, g_NF: jax.Array) -> jax.Array:
    """xᵀ g in float32: what a weight's gradient is."""
    return jax.lax.platform_dependent(x_ND, g_NF, cpu=_sum_on_cpu, default=_sum_of_rows)


def _sum_of_rows(x_ND, g_NF):
    return jnp.einsum('nd,nf->df', x_ND, g_NF, preferred_element_type=jnp.float32)


def _sum_on_cpu(x_ND, g_NF):
    """The same, with the narrower operand transposed in memory before the product.

    XLA's fast kernels want the summed axis last on the left. Otherwise it converts bfloat16 to
    float32 and takes a slow one: a third of the speed in bfloat16, two thirds in float32.
    """

    def transposed(x):
        # Else the transposition would be folded into the product again; and the reshape hides that
        # the array began as another's transpose, by which XLA chooses the kernel.
        return jax.lax.optimization_barrier(x.T[None])[0]

    if x_ND.shape[1] <= g_NF.shape[1]:
        return jnp.matmul(transposed(x_ND), g_NF, preferred_element_type=jnp.float32)
    product_FD = jnp.matmul(transposed(g_NF), x_ND, preferred_element_type=jnp.float32)
    return jax.lax.optimization_barrier(product_FD).T


class Dense(nn.Module):
    """y = x W (+ b), over the last `inputs` axes of x, to the axes `features`.

    Attributes:
      features: the output's axes, such as (heads, d_k); they count as one fan.
      inputs: how many trailing axes of x are contracted.
      dtype: what x and W are rounded to; parameters and the result are float32.
      initial: what W is at first; b is 0.
    """

    features: tuple[int, ...]
    inputs: int = 1
    bias: bool = True
    dtype: DTypeLike = jnp.float32
    initial: Init = Xavier()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        outer, inner = x.shape[: x.ndim - self.inputs], x.shape[x.ndim - self.inputs :]
        fan_in, fan_out = math.prod(inner), math.prod(self.features)

        def initial(key, shape):
            return self.initial.matrix(key, fan_in, fan_out, self.name).reshape(shape)

        w = self.param('kernel', initial, (*inner, *self.features))
        x_ND, w_DF = x.reshape(-1, fan_in), w.reshape(fan_in, fan_out)
        y = product(x_ND.astype(self.dtype), w_DF.astype(self.dtype))
        if self.bias:
            y += self.param('bias', nn.initializers.zeros, self.features).reshape(
                1, fan_out
            )
        return y.reshape(*outer, *self.features)

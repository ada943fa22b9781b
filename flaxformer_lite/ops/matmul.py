"""Matrix products: operands in the compute dtype, sums and results in float32."""

import jax
import jax.numpy as jnp
from jax.lax import DotAlgorithmPreset

from flaxformer_lite.ops.choose import choose

_SUMS_IN_FLOAT32 = {
    jnp.dtype('bfloat16'): DotAlgorithmPreset.BF16_BF16_F32,
    jnp.dtype('float16'): DotAlgorithmPreset.F16_F16_F32,
}


def reference(x_ND: jax.Array, w_DF: jax.Array) -> jax.Array:
    """Returns x w, float32, for operands of one dtype."""
    return jnp.matmul(x_ND, w_DF, preferred_element_type=jnp.float32)


@jax.custom_vjp
def tuned(x_ND: jax.Array, w_DF: jax.Array) -> jax.Array:
    """Computes both gradients as products of low-precision operands too.

    Rounding the incoming float32 gradient lets all three products of a layer run on the
    fast bfloat16 units.
    """
    return reference(x_ND, w_DF)


def _forward(x_ND, w_DF):
    # Not `tuned`, so that a policy of `jax.checkpoint` recognizes the product.
    return reference(x_ND, w_DF), (x_ND, w_DF)


def _backward(operands, g_NF):
    x_ND, w_DF = operands
    g_NF = g_NF.astype(x_ND.dtype)
    dw_DF = weight_gradient(x_ND, g_NF)
    return input_gradient(g_NF, w_DF), dw_DF.astype(w_DF.dtype)


tuned.defvjp(_forward, _backward)

matmul = choose(reference, tuned)


def input_gradient_reference(g_NF: jax.Array, w_DF: jax.Array) -> jax.Array:
    """Returns g wᵀ, the gradient of x in x w, rounded to the operands' dtype."""
    dx_ND = jnp.einsum('nf,df->nd', g_NF, w_DF, preferred_element_type=jnp.float32)
    return dx_ND.astype(g_NF.dtype)


def input_gradient_on_gpu(g_NF: jax.Array, w_DF: jax.Array) -> jax.Array:
    """Rounds the float32 sums within the product, to halve the memory traffic."""
    dtype = g_NF.dtype
    algorithm = _SUMS_IN_FLOAT32.get(dtype)
    return jnp.einsum(
        'nf,df->nd', g_NF, w_DF, precision=algorithm, preferred_element_type=dtype
    )


input_gradient = choose(input_gradient_reference, input_gradient_on_gpu, only_on='cuda')


def weight_gradient_reference(x_ND: jax.Array, g_NF: jax.Array) -> jax.Array:
    """Returns xᵀ g, float32, the gradient of w in x w."""
    return jnp.einsum('nd,nf->df', x_ND, g_NF, preferred_element_type=jnp.float32)


def weight_gradient_on_cpu(x_ND: jax.Array, g_NF: jax.Array) -> jax.Array:
    """Transposes the narrower operand in memory first.

    XLA's fast CPU kernels need the summed axis last on the left.
    """
    if x_ND.shape[1] <= g_NF.shape[1]:
        return reference(_transpose_in_memory(x_ND), g_NF)
    product_FD = reference(_transpose_in_memory(g_NF), x_ND)
    return jax.lax.optimization_barrier(product_FD).T


def _transpose_in_memory(x: jax.Array) -> jax.Array:
    # Without the barrier, XLA folds the transposition into the product again. XLA
    # chooses the kernel by whether the operand is a transpose; the extra axis hides it.
    return jax.lax.optimization_barrier(x.T[None])[0]


weight_gradient = choose(
    weight_gradient_reference, weight_gradient_on_cpu, only_on='cpu'
)


def sum_rows_reference(g_NF: jax.Array) -> jax.Array:
    """Returns Σ_n g_nf, float32, the gradient of b in x w + b, for a float32 g."""
    return g_NF.sum(0)


def sum_rows_on_cpu(g_NF: jax.Array) -> jax.Array:
    """Computes the sum as a product with ones, which is faster than XLA's reduction."""
    return jax.lax.dot(jnp.ones(len(g_NF), g_NF.dtype), g_NF)


sum_rows = choose(sum_rows_reference, sum_rows_on_cpu, only_on='cpu')

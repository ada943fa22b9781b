"""Statistics of each row of logits for softmax cross-entropy."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from flaxformer_lite.ops.choose import choose


class SoftmaxStatistics(NamedTuple):
    """Reductions over the vocabulary, each float32 of shape (N,).

    Attributes:
      highest_N: max_v z_v, without gradient.
      sum_exp_N: Σ_v exp(z_v − max).
      sum_N: Σ_v z_v.
    """

    highest_N: jax.Array
    sum_exp_N: jax.Array
    sum_N: jax.Array


def reference(logits_NV: jax.Array) -> SoftmaxStatistics:
    """Returns the three reductions of float32 logits z.

    Examples:
      >>> highest_N, _, sum_N = reference(jnp.array([[1.0, 3.0, 0.0]]))
      >>> print(highest_N, sum_N)
      [3.] [4.]
    """
    highest_N = jax.lax.stop_gradient(logits_NV.max(-1))
    sum_exp_N = jnp.exp(logits_NV - highest_N[:, None]).sum(-1)
    return SoftmaxStatistics(highest_N, sum_exp_N, logits_NV.sum(-1))


@jax.custom_jvp
def in_one_pass(logits_NV: jax.Array) -> SoftmaxStatistics:
    """Computes all three in one reduction, so that a GPU reads the logits once.

    Partial sums are rescaled at each new maximum (Milakov and Gimelshein 2018, "Online
    normalizer calculation for softmax").
    """

    def combine(x, y):
        highest = jnp.maximum(x[0], y[0])
        # The initial value is −∞, and −∞ − −∞ would be NaN.
        shift = jnp.where(jnp.isfinite(highest), highest, 0.0)
        sum_exp = x[1] * jnp.exp(x[0] - shift) + y[1] * jnp.exp(y[0] - shift)
        return highest, sum_exp, x[2] + y[2]

    operands = logits_NV, jnp.ones_like(logits_NV), logits_NV
    zero = jnp.zeros((), logits_NV.dtype)
    initial = -jnp.inf + zero, zero, zero
    return SoftmaxStatistics(*jax.lax.reduce(operands, initial, combine, (1,)))


@in_one_pass.defjvp
def _derivative(primals, tangents):
    # `jax.lax.reduce` of several operands has no derivative.
    return jax.jvp(reference, primals, tangents)


softmax_statistics = choose(reference, in_one_pass, only_on='cuda')

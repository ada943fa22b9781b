"""The mean of several checkpoints' parameters, computed where the parameters are."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def average(trees: Iterable[Any]) -> Any:
    """The mean of trees of floating-point arrays, leaf by leaf; None of no tree.

    One tree is in memory at a time, beside the sums, which are float64. (A TPU computes
    these by pairs of float32.) The result has the leaves' own dtypes and shardings.
    """
    sums = dtypes = None
    number = 0
    for tree in trees:
        dtypes = jax.tree.map(lambda x: x.dtype, tree)
        with jax.enable_x64(True):
            if sums is None:
                sums = jax.tree.map(_float64, tree)
            else:
                sums = jax.tree.map(_add, sums, tree)
            # Or the next tree would be there before this one goes.
            jax.block_until_ready(sums)
        number += 1
        del tree
    with jax.enable_x64(True):
        return jax.tree.map(partial(_divide, np.float64(number)), sums, dtypes)


@jax.jit
def _float64(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float64)


@partial(jax.jit, donate_argnums=0)
def _add(total: jax.Array, x: jax.Array) -> jax.Array:
    return total + x.astype(jnp.float64)


# The number is an argument: XLA would multiply by the reciprocal of a constant.
@partial(jax.jit, static_argnums=2)
def _divide(number: Any, total: jax.Array, dtype: Any) -> jax.Array:
    return (total / number).astype(dtype)

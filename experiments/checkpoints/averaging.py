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
            sums = _float64(tree) if sums is None else _add(sums, tree)
            # Or the next tree would be there before this one goes.
            jax.block_until_ready(sums)
        number += 1
        del tree

    # The number is an argument: XLA would multiply by the reciprocal of a constant.
    @jax.jit
    def divided(sums: Any, number: Any) -> Any:
        return jax.tree.map(lambda x, dtype: (x / number).astype(dtype), sums, dtypes)

    with jax.enable_x64(True):
        return divided(sums, np.float64(number))


# Of whole trees: a program for each shape of their leaves takes longer to make.


@jax.jit
def _float64(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(jnp.float64), tree)


@partial(jax.jit, donate_argnums=0)
def _add(sums: Any, tree: Any) -> Any:
    return jax.tree.map(jnp.add, sums, _float64(tree))

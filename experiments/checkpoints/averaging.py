"""The mean of several checkpoints' parameters."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.runtime import mesh


class Mean(NamedTuple):
    """The mean of some checkpoints' variables, and the steps it is of."""

    variables: Any
    steps: list[int]
    left_out: list[int]  # steps of damaged checkpoints


def average(trees: Iterable[Any]) -> Any:
    """The mean of trees of floating-point arrays, leaf by leaf.

    One tree is in memory at a time. The sums are float64; the result is NumPy arrays of
    the leaves' own dtypes.

    Raises:
      ValueError: there is no tree, or a leaf is not floating point.
    """
    sums = None
    number = 0
    dtypes = None
    for tree in trees:
        dtypes = jax.tree.map(_float_dtype, tree)
        if sums is None:
            sums = jax.tree.map(lambda x: np.zeros(x.shape), tree)
        sums = jax.tree.map(_add, sums, tree)
        number += 1
    if sums is None:
        raise ValueError('there is nothing to average')
    return jax.tree.map(
        lambda total, dtype: (total / number).astype(dtype), sums, dtypes
    )


def _add(total: np.ndarray, x: Any) -> np.ndarray:
    return np.add(total, mesh.fetch(x), out=total)


def _float_dtype(leaf: Any) -> np.dtype:
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        raise ValueError(
            f'only floating-point numbers have a mean here, not {leaf.dtype}'
        )
    return leaf.dtype

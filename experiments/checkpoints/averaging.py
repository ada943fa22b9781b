"""The mean of several checkpoints' parameters."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Mean(NamedTuple):
    variables: Any
    steps: list[int]  # whose mean they are
    left_out: list[int]  # those that are damaged


def average(trees: Iterable[Any]) -> Any:
    """The mean of trees of floating-point arrays, leaf by leaf; one tree is in memory at a time.

    Summed in float64 and returned as NumPy arrays of the leaves' own dtypes.

    Raises:
      ValueError: there is no tree, or a leaf is not floating point.
    """
    sums, number, dtypes = None, 0, None
    for tree in trees:
        dtypes = jax.tree.map(_float_dtype, tree)
        sums = sums or jax.tree.map(lambda x: np.zeros(x.shape), tree)
        sums = jax.tree.map(lambda total, x: np.add(total, x, out=total), sums, tree)
        number += 1
    if sums is None:
        raise ValueError('there is nothing to average')
    return jax.tree.map(
        lambda total, dtype: (total / number).astype(dtype), sums, dtypes
    )


def _float_dtype(leaf: Any) -> np.dtype:
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        raise ValueError(
            f'only floating-point numbers have a mean here, not {leaf.dtype}'
        )
    return leaf.dtype

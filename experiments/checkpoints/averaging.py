"""The mean of several checkpoints' parameters, computed where the parameters are."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

# A tree of fewer bytes is averaged at once: there is little to save.
_SMALL = 2**26
_PARTS = 4


class Mean(NamedTuple):
    """The mean of some checkpoints' variables, and the steps it is of."""

    variables: Any
    steps: list[int]
    left_out: list[int]  # steps of damaged checkpoints


def parts(tree: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Parts of a nested dict of arrays or their shapes, to be averaged one by one.

    The sums of a part take twice its memory, and the tree that is added once. With a
    quarter of the tree at a time, or an array if that is larger, this and the mean of
    the other parts take less than two trees.
    """
    leaves = traverse_util.flatten_dict(tree)
    most = max(_SMALL, sum(map(_bytes, leaves.values())) // _PARTS)
    part: dict[Any, Any] = {}
    size = 0
    for path, leaf in leaves.items():
        if part and size + _bytes(leaf) > most:
            yield traverse_util.unflatten_dict(part)
            part, size = {}, 0
        part[path] = leaf
        size += _bytes(leaf)
    yield traverse_util.unflatten_dict(part)


def join(trees: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The tree whose parts these are."""
    leaves: dict[Any, Any] = {}
    for tree in trees:
        leaves |= traverse_util.flatten_dict(tree)
    return traverse_util.unflatten_dict(leaves)


def average(trees: Iterable[Any]) -> Any:
    """The mean of trees of floating-point arrays, leaf by leaf.

    One tree is in memory at a time, beside the sums, which are float64. (A TPU computes
    these by pairs of float32.) The result has the leaves' own dtypes and shardings.

    Raises:
      ValueError: there is no tree, or a leaf is not floating point.
    """
    sums = None
    number = 0
    dtypes = None
    for tree in trees:
        dtypes = jax.tree.map(_float_dtype, tree)
        with jax.enable_x64(True):
            if sums is None:
                sums = jax.tree.map(_float64, tree)
            else:
                sums = jax.tree.map(_add, sums, tree)
            # Or the next tree would be there before this one goes.
            jax.block_until_ready(sums)
        number += 1
        del tree
    if sums is None:
        raise ValueError('there is nothing to average')
    with jax.enable_x64(True):
        divisor = np.float64(number)
        return jax.tree.map(
            lambda total, dtype: _divide(total, divisor, dtype), sums, dtypes
        )


@jax.jit
def _float64(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float64)


@partial(jax.jit, donate_argnums=0)
def _add(total: jax.Array, x: jax.Array) -> jax.Array:
    return total + x.astype(jnp.float64)


# The number is an argument: XLA would multiply by the reciprocal of a constant.
@partial(jax.jit, static_argnums=2)
def _divide(total: jax.Array, number: Any, dtype: Any) -> jax.Array:
    return (total / number).astype(dtype)


def _float_dtype(leaf: Any) -> Any:
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        raise ValueError(
            f'only floating-point numbers have a mean here, not {leaf.dtype}'
        )
    return leaf.dtype


def _bytes(leaf: Any) -> int:
    return leaf.size * leaf.dtype.itemsize

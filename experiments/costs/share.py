"""What of a training step's arrays and products falls on one device of a mesh.

Where `mesh.data` is empty, as many devices are taken as the other axes need.
"""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AbstractMesh

from experiments.config.schema import MeshConfig
from experiments.runtime.mesh import check_divides
from flaxformer_lite.sharding import AXES, ROW_AXES, state_shardings
from flaxformer_lite.training.train_step import TrainState


def of_device(
    config: MeshConfig, state: TrainState, arrays: dict[str, int], trained: Any
) -> dict[str, int]:
    """The bytes of one device, and how many devices there are.

    Args:
      config: the sizes of the mesh.
      state: shapes and dtypes of the training state.
      arrays: the bytes of all devices together, as the ledger has them.
      trained: those of the state's parameters that are trained.

    Returns:
      devices: their number.
      parameters, optimizer: as the rules of `sharding` divide them.
      gradients: as the parameters that are trained.
      activations: at most; what `tensor` divides of them is not taken off.

    Raises:
      UserError: an axis divides no parameter.
    """
    mesh = _mesh(config)
    check_divides(mesh, state.params)
    shardings = state_shardings(state, mesh)
    rows = _row_shards(mesh)
    return {
        'devices': mesh.size,
        'parameters': _held(state.params, shardings.params),
        'gradients': _held(trained, state_shardings(trained, mesh)),
        'optimizer': _held(state.opt_state, shardings.opt_state),
        'activations': math.ceil(arrays['activations'] / rows),
    }


def rows_of_device(config: MeshConfig, rows: int, accumulate: int) -> int:
    """How many of a batch's rows a device works through, empty ones included."""
    parts = accumulate * _row_shards(_mesh(config))
    return math.ceil(rows / parts) * accumulate


def of_products(
    config: MeshConfig, params: Any, part_of: Callable[[str], str]
) -> dict[str, float]:
    """The share of the products of each part of a model that falls on one device.

    Of the products of a row: `tensor` divides those with the matrices that it divides,
    and attention as it divides the matrices around it.

    Args:
      params: shapes and dtypes of the parameters.
      part_of: the part that a parameter belongs to, by its path.
    """
    whole = Counter()
    own = Counter()
    shardings = jax.tree.leaves(state_shardings(params, _mesh(config)))
    leaves = jax.tree.leaves_with_path(params)
    for (path, leaf), sharding in zip(leaves, shardings, strict=True):
        if leaf.ndim > 1:
            part = part_of(jax.tree_util.keystr(path, simple=True, separator='/'))
            is_divided = any('tensor' in (axes or ()) for axes in sharding.spec)
            whole[part] += leaf.size
            own[part] += leaf.size / (config.tensor if is_divided else 1)
    return {part: own[part] / whole[part] for part in whole}


def _mesh(config: MeshConfig) -> AbstractMesh:
    sizes = {'data': config.data or 1, 'fsdp': config.fsdp, 'tensor': config.tensor}
    return AbstractMesh(tuple(sizes[axis] for axis in AXES), AXES)


def _row_shards(mesh: AbstractMesh) -> int:
    return math.prod(mesh.shape[axis] for axis in ROW_AXES)


def _held(tree: Any, shardings: Any) -> int:
    """The bytes of one device's parts of these arrays."""
    parts = []
    for x, sharding in zip(
        jax.tree.leaves(tree), jax.tree.leaves(shardings), strict=True
    ):
        shape = sharding.shard_shape(x.shape)
        parts.append(math.prod(shape) * x.dtype.itemsize)
    return sum(parts)

"""What of a training step's arrays falls on one device of a mesh."""

import math
from typing import Any

import jax
from jax.sharding import AbstractMesh

from experiments.config.schema import MeshConfig
from flaxformer_lite.sharding import AXES, ROW_AXES, state_shardings
from flaxformer_lite.training.train_step import TrainState


def of_device(
    config: MeshConfig, state: TrainState, arrays: dict[str, int], trained: Any
) -> dict[str, int]:
    """The bytes of one device, and how many devices there are.

    Where `mesh.data` is empty, as many devices are taken as the other axes need.

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
    """
    sizes = {'data': config.data or 1, 'fsdp': config.fsdp, 'tensor': config.tensor}
    mesh = AbstractMesh(tuple(sizes[axis] for axis in AXES), AXES)
    shardings = state_shardings(state, mesh)
    rows = math.prod(sizes[axis] for axis in ROW_AXES)
    return {
        'devices': mesh.size,
        'parameters': _held(state.params, shardings.params),
        'gradients': _held(trained, state_shardings(trained, mesh)),
        'optimizer': _held(state.opt_state, shardings.opt_state),
        'activations': math.ceil(arrays['activations'] / rows),
    }


def _held(tree: Any, shardings: Any) -> int:
    """The bytes of one device's parts of these arrays."""
    parts = []
    for x, sharding in zip(
        jax.tree.leaves(tree), jax.tree.leaves(shardings), strict=True
    ):
        shape = sharding.shard_shape(x.shape)
        parts.append(math.prod(shape) * x.dtype.itemsize)
    return sum(parts)

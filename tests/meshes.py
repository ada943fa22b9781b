"""Meshes of all devices, and programs compiled for them."""

from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from flaxformer_lite import sharding


def make_mesh(data: int | None = None, fsdp: int = 1, tensor: int = 1) -> Mesh:
    """Returns a mesh of all devices; `data` defaults to the remaining ones."""
    sizes = data or jax.device_count() // (fsdp * tensor), fsdp, tensor
    axis_types = (AxisType.Auto,) * len(sharding.AXES)
    return jax.make_mesh(sizes, sharding.AXES, axis_types=axis_types)


def rows(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of a batch along its rows."""
    return NamedSharding(mesh, PartitionSpec(sharding.ROW_AXES))


def everywhere(mesh: Mesh) -> NamedSharding:
    """Returns the sharding that replicates an array."""
    return NamedSharding(mesh, PartitionSpec())


def compile_on(mesh: Mesh, function: Any, *arguments: Any) -> jax.stages.Compiled:
    """Compiles a jitted function for the shapes of its arguments."""
    with jax.set_mesh(mesh):
        return function.lower(*arguments).compile()

"""Where arrays live: a batch's rows divided among the devices, all else on each."""

import functools
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec


@functools.cache
def _mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((jax.device_count(),), ('data',), axis_types=(AxisType.Auto,))


def rows() -> NamedSharding:
    """The first axis is divided among the devices."""
    return NamedSharding(_mesh(), PartitionSpec('data'))


def everywhere() -> NamedSharding:
    """The whole array is on every device."""
    return NamedSharding(_mesh(), PartitionSpec())


def placed(tree: Any) -> Any:
    """The abstract arrays of a tree, with the sharding `everywhere`."""

    def place(x: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere())

    return jax.tree.map(place, tree)

"""Where arrays live: a batch's rows divided among the devices, all else on each."""

import functools
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec


@functools.cache
def _mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((jax.device_count(),), ('data',), axis_types=(AxisType.Auto,))


def rows(axis: int = 0) -> NamedSharding:
    """The axis of a batch's rows is divided among the devices; others are not."""
    return NamedSharding(_mesh(), PartitionSpec(*[None] * axis, 'data'))


def everywhere() -> NamedSharding:
    """The whole array is on every device."""
    return NamedSharding(_mesh(), PartitionSpec())


def placed(tree: Any, sharding: NamedSharding | None = None) -> Any:
    """The abstract arrays of a tree, with a sharding; by default `everywhere`."""
    sharding = sharding or everywhere()

    def place(x: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    return jax.tree.map(place, tree)

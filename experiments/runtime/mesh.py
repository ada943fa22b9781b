"""Where arrays live: on a mesh of devices, as `flaxformer_lite.sharding` divides."""

import dataclasses
import functools
import math
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from experiments.command_line.errors import UserError
from experiments.runtime.processes import group
from flaxformer_lite.sharding import AXES, ROW_AXES, state_shardings


@dataclasses.dataclass(frozen=True)
class DeviceMesh:
    """All devices, in a mesh with the axes `data`, `fsdp` and `tensor`."""

    mesh: jax.sharding.Mesh

    @property
    def row_shards(self) -> int:
        """Among how many devices the rows of a batch are divided."""
        return math.prod(self.mesh.shape[axis] for axis in ROW_AXES)

    def rows(self, axis: int = 0) -> NamedSharding:
        """The axis of a batch's rows is divided; others are not."""
        return NamedSharding(self.mesh, PartitionSpec(*[None] * axis, ROW_AXES))

    def everywhere(self) -> NamedSharding:
        """The whole array is on every device."""
        return NamedSharding(self.mesh, PartitionSpec())

    def state(self, tree: Any) -> Any:
        """The sharding of each parameter of a tree, and of what is shaped like one."""
        return state_shardings(tree, self.mesh)

    def gathered(self) -> NamedSharding:
        """Of rows that each process reads: where there are several, all have all."""
        return self.rows() if group.count() == 1 else self.everywhere()

    def key(self, seed: int) -> jax.Array:
        """A random key, on every device."""
        if group.count() == 1:
            return jax.device_put(jax.random.key(seed), self.everywhere())
        make = jax.jit(lambda: jax.random.key(seed), out_shardings=self.everywhere())
        return make()

    def describe(self) -> str:
        """`data 2 × fsdp 4`, of the axes that divide anything."""
        divided = [
            f'{axis} {size}' for axis, size in self.mesh.shape.items() if size > 1
        ]
        return ' × '.join(divided)


def of(data: int | None = None, fsdp: int = 1, tensor: int = 1) -> DeviceMesh:
    """A mesh of all devices.

    Args:
      data, fsdp, tensor: how many divide what `flaxformer_lite.sharding` says; `data`
        is by default all that are left.

    Raises:
      UserError: they do not multiply to the devices that there are.
    """
    count = jax.device_count()
    if (data or count // (fsdp * tensor)) * fsdp * tensor != count:
        raise UserError(_not_all_devices(data, fsdp, tensor))
    return _make(count // (fsdp * tensor), fsdp, tensor)


@functools.cache
def _make(*sizes: int) -> DeviceMesh:
    axis_types = (AxisType.Auto,) * len(AXES)
    return DeviceMesh(jax.make_mesh(sizes, AXES, axis_types=axis_types))


def _not_all_devices(data: int | None, fsdp: int, tensor: int) -> str:
    count = jax.device_count()
    here = '1 device' if count == 1 else f'{count} devices'
    product = fsdp * tensor
    if data is None:
        return (
            f'mesh.fsdp={fsdp} and mesh.tensor={tensor} multiply to {product}, which '
            f'does not divide the {here} that there are: choose others'
        )
    return (
        f'mesh.data={data}, mesh.fsdp={fsdp} and mesh.tensor={tensor} multiply to '
        f'{data * product}, and there are {here}: choose others, or leave mesh.data '
        'out for all that are left'
    )


def put(tree: Any, shardings: Any) -> Any:
    """Arrays on the devices, with a sharding for all or one for each.

    Args:
      tree: of NumPy arrays, which every process has alike; each puts its devices' part
        there.
    """
    if group.count() == 1:
        return jax.device_put(tree, shardings)

    def place(x: np.ndarray, sharding: NamedSharding) -> jax.Array:
        return jax.make_array_from_callback(x.shape, sharding, lambda part: x[part])

    return jax.tree.map(place, tree, _for_each(tree, shardings))


def fetch(tree: Any) -> Any:
    """The whole arrays in each process, as NumPy's."""
    if group.count() == 1:
        return jax.device_get(tree)
    return multihost_utils.process_allgather(tree, tiled=True)


def check_divides(devices: DeviceMesh, variables: Any) -> None:
    """Refuses an axis that divides no parameter of a model.

    Args:
      variables: the model's, or their shapes.

    Raises:
      UserError: names the axis.
    """
    used = set()
    for sharding in jax.tree.leaves(devices.state(variables)):
        for axes in sharding.spec:
            used.update((axes,) if isinstance(axes, str) else axes or ())
    mends = {
        'fsdp': 'a number that divides d_model',
        'tensor': 'a number that divides num_heads, d_ff or the vocabulary',
    }
    for axis, mend in mends.items():
        size = devices.mesh.shape[axis]
        if size > 1 and axis not in used:
            raise UserError(
                f'mesh.{axis}={size} divides no parameter of this model: choose {mend}'
            )


def placed(tree: Any, shardings: Any) -> Any:
    """The abstract arrays of a tree, with a sharding for all or one for each."""

    def place(x: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    return jax.tree.map(place, tree, _for_each(tree, shardings))


def _for_each(tree: Any, shardings: Any) -> Any:
    if isinstance(shardings, NamedSharding):
        return jax.tree.map(lambda _: shardings, tree)
    return shardings

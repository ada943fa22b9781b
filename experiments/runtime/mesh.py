"""Where arrays live: on a mesh of devices, as `flaxformer_lite.sharding` divides."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from experiments.errors import UserError
from experiments.runtime import processes
from flaxformer_lite.models.base import Model
from flaxformer_lite.sharding import AXES, ROW_AXES, state_shardings
from flaxformer_lite.training.train_step import init_variables


@dataclasses.dataclass(frozen=True)
class DeviceMesh:
    """All devices, in a mesh with the axes `data`, `fsdp` and `tensor`."""

    mesh: jax.sharding.Mesh

    @property
    def row_shards(self) -> int:
        """Among how many devices the rows of a batch are divided."""
        return math.prod(self.mesh.shape[axis] for axis in ROW_AXES)

    def rows(self) -> NamedSharding:
        """The rows of a batch are divided, which are its first axis."""
        return NamedSharding(self.mesh, PartitionSpec(ROW_AXES))

    def everywhere(self) -> NamedSharding:
        """The whole array is on every device."""
        return NamedSharding(self.mesh, PartitionSpec())

    def state(self, tree: Any) -> Any:
        """The sharding of each parameter of a tree, and of what is shaped like one."""
        return state_shardings(tree, self.mesh)

    def own_rows(self, rows: int) -> np.ndarray:
        """The rows, of so many of a batch, that this process makes.

        Returns:
          Their numbers, ascending.
        """
        is_own = np.zeros(rows, bool)
        for part in self.rows().addressable_devices_indices_map((rows,)).values():
            is_own[part] = True
        return np.flatnonzero(is_own)

    def put_rows(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """A batch on the devices, of which this process has made its `own_rows`."""
        return jax.make_array_from_process_local_data(self.rows(), batch)

    def readable_rows(self) -> NamedSharding:
        """Of rows that a process is to read: all of them, on devices of its own."""
        rows = self.rows()
        return rows if rows.is_fully_addressable else self.everywhere()

    def key(self, seed: int) -> jax.Array:
        """A random key, on every device."""
        # Made there, for it cannot be put on devices of other processes.
        return jax.jit(jax.random.key, out_shardings=self.everywhere())(seed)

    def describe(self) -> str:
        """`data 2 × fsdp 4`, of the axes that divide anything."""
        sizes = self.mesh.shape.items()
        return ' × '.join(f'{axis} {size}' for axis, size in sizes if size > 1)


def of(data: int | None = None, fsdp: int = 1, tensor: int = 1) -> DeviceMesh:
    """A mesh of all devices.

    Args:
      data, fsdp, tensor: how many divide what `flaxformer_lite.sharding` says; `data`
        is by default all that are left.

    Raises:
      UserError: they do not multiply to the devices that there are.
    """
    count = jax.device_count()
    sizes = (data or count // (fsdp * tensor), fsdp, tensor)
    if math.prod(sizes) != count:
        raise UserError(
            f'mesh.data={data}, mesh.fsdp={fsdp} and mesh.tensor={tensor} do not '
            f'multiply to the {count} devices that there are: choose others; without '
            'mesh.data it is all that are left'
        )
    return _make(*sizes)


@functools.cache
def _make(*sizes: int) -> DeviceMesh:
    axis_types = (AxisType.Auto,) * len(AXES)
    mesh = jax.make_mesh(sizes, AXES, axis_types=axis_types)
    if processes.count() > 1 and jax.default_backend() == 'cpu':
        _connect(mesh)
    return DeviceMesh(mesh)


def _connect(mesh: jax.sharding.Mesh) -> None:
    """Has processes on CPUs connect their devices along all axes.

    Gloo does so when devices first exchange something, and gives up where one of them
    comes half a minute after another, as when it takes longer to compile. Once they are
    connected they wait for each other without a limit.
    """
    divided = [axis for axis in AXES if mesh.shape[axis] > 1]
    groups = [
        axes
        for number in range(1, len(divided) + 1)
        for axes in itertools.combinations(divided, number)
    ]

    def sums():
        # Of what differs from device to device, or XLA would exchange nothing.
        own = jax.lax.axis_index(tuple(divided))
        return [jax.lax.psum(own, axes) for axes in groups]

    everywhere = PartitionSpec()
    each = jax.shard_map(
        sums, mesh=mesh, in_specs=(), out_specs=everywhere, check_vma=False
    )
    processes.barrier('mesh')
    jax.block_until_ready(jax.jit(each)())


def put(tree: Any, shardings: Any) -> Any:
    """Arrays on the devices, with a sharding for all or one for each.

    Args:
      tree: of NumPy arrays, which every process has alike; each puts its devices' part
        there.
    """
    if processes.count() == 1:
        return jax.device_put(tree, shardings)

    def place(x, sharding):
        return jax.make_array_from_callback(x.shape, sharding, lambda part: x[part])

    return jax.tree.map(place, tree, jax.tree.broadcast(shardings, tree))


def fetch(tree: Any) -> Any:
    """The whole arrays in each process, as NumPy's."""
    if processes.count() == 1:
        return jax.device_get(tree)
    return multihost_utils.process_allgather(tree, tiled=True)


def check_divides(mesh: jax.sharding.Mesh | AbstractMesh, variables: Any) -> None:
    """Refuses an axis that divides no parameter of a model.

    Args:
      variables: the model's, or their shapes.

    Raises:
      UserError: names the axis.
    """
    used = set()
    for sharding in jax.tree.leaves(state_shardings(variables, mesh)):
        for axes in sharding.spec:
            used.update((axes,) if isinstance(axes, str) else axes or ())
    mends = {
        'fsdp': 'a number that divides d_model',
        'tensor': 'a number that divides num_heads, d_ff or the vocabulary',
    }
    for axis, mend in mends.items():
        size = mesh.shape[axis]
        if size > 1 and axis not in used:
            raise UserError(
                f'mesh.{axis}={size} divides no parameter of this model: choose {mend}'
            )


def placed(tree: Any, shardings: Any) -> Any:
    """The abstract arrays of a tree, with a sharding for all or one for each."""

    def place(x, sharding):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    return jax.tree.map(place, tree, jax.tree.broadcast(shardings, tree))


def abstract_key(devices: DeviceMesh) -> Any:
    """The shape of what `DeviceMesh.key` returns."""
    return placed(jax.eval_shape(jax.random.key, 0), devices.everywhere())


@functools.lru_cache(maxsize=4)
def first_variables(model: Model) -> Any:
    """`init_variables` of a model, jitted: (key, given) → variables.

    To trace it takes a while, and a run needs its trace in several places: all have to
    give a key like `abstract_key`.
    """
    return jax.jit(functools.partial(init_variables, model))


@functools.lru_cache(maxsize=16)
def abstract_variables(model: Model, devices: DeviceMesh | None = None) -> Any:
    """Shapes and dtypes of the model's variables, placed on the devices.

    Args:
      devices: by default all that there are, each of which has all variables.
    """
    devices = devices or of()
    abstract = first_variables(model).eval_shape(abstract_key(devices), {})
    return placed(abstract, devices.state(abstract))

"""Device mesh and placement of arrays."""

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
    """A mesh of all devices with the axes `data`, `fsdp` and `tensor`."""

    mesh: jax.sharding.Mesh

    @property
    def row_shards(self) -> int:
        return math.prod(self.mesh.shape[axis] for axis in ROW_AXES)

    def rows(self) -> NamedSharding:
        """Returns the sharding of a batch along its rows."""
        return NamedSharding(self.mesh, PartitionSpec(ROW_AXES))

    def everywhere(self) -> NamedSharding:
        """Returns the sharding that replicates an array."""
        return NamedSharding(self.mesh, PartitionSpec())

    def state(self, tree: Any) -> Any:
        """Returns the shardings of parameters, and of leaves of their shapes."""
        return state_shardings(tree, self.mesh)

    def own_rows(self, rows: int) -> np.ndarray:
        """Returns the row indices that this process makes of a batch, ascending."""
        has_row = np.zeros(rows, bool)
        for part in self.rows().addressable_devices_indices_map((rows,)).values():
            has_row[part] = True
        return np.flatnonzero(has_row)

    def put_rows(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """Puts this process's `own_rows` of a batch on the devices."""
        return jax.make_array_from_process_local_data(self.rows(), batch)

    def readable_rows(self) -> NamedSharding:
        """Returns a sharding of rows with which each process can read all rows."""
        rows = self.rows()
        return rows if rows.is_fully_addressable else self.everywhere()

    def key(self, seed: int) -> jax.Array:
        # Created on the devices: a process cannot put data on those of other processes.
        return jax.jit(jax.random.key, out_shardings=self.everywhere())(seed)

    def describe(self) -> str:
        """Formats the axes larger than 1: `data 2 × fsdp 4`."""
        sizes = self.mesh.shape.items()
        return ' × '.join(f'{axis} {size}' for axis, size in sizes if size > 1)


def make_mesh(data: int | None = None, fsdp: int = 1, tensor: int = 1) -> DeviceMesh:
    """Returns a mesh of all devices.

    Args:
      data: Size of the axis `data`. Defaults to the remaining devices.
    """
    count = jax.device_count()
    sizes = (data or count // (fsdp * tensor), fsdp, tensor)
    if math.prod(sizes) != count:
        raise UserError(
            f'mesh.data={data}, mesh.fsdp={fsdp} and mesh.tensor={tensor} must '
            f'multiply to the number of devices, {count}. Change them, or leave '
            'mesh.data empty to use all remaining devices.'
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
    """Connects the devices of CPU processes along all axes.

    At their first collective, Gloo fails if a device arrives 30 seconds late. Connected
    devices wait without a limit.
    """
    divided = [axis for axis in AXES if mesh.shape[axis] > 1]
    groups = [
        axes
        for number in range(1, len(divided) + 1)
        for axes in itertools.combinations(divided, number)
    ]

    def sums():
        # The values differ between devices. Otherwise XLA would remove the collective.
        own = jax.lax.axis_index(tuple(divided))
        return [jax.lax.psum(own, axes) for axes in groups]

    everywhere = PartitionSpec()
    each = jax.shard_map(
        sums, mesh=mesh, in_specs=(), out_specs=everywhere, check_vma=False
    )
    processes.barrier('mesh')
    jax.block_until_ready(jax.jit(each)())


def put(tree: Any, shardings: Any) -> Any:
    """Puts NumPy arrays, equal in every process, on the devices.

    `shardings` is one for all, or a tree.
    """
    if processes.count() == 1:
        return jax.device_put(tree, shardings)

    def place(x, sharding):
        return jax.make_array_from_callback(x.shape, sharding, lambda part: x[part])

    return jax.tree.map(place, tree, jax.tree.broadcast(shardings, tree))


def fetch(tree: Any) -> Any:
    """Returns the full arrays in each process, as NumPy arrays."""
    if processes.count() == 1:
        return jax.device_get(tree)
    return multihost_utils.process_allgather(tree, tiled=True)


def check_divides(mesh: jax.sharding.Mesh | AbstractMesh, variables: Any) -> None:
    """Raises UserError if an axis of the mesh divides no parameter of a model."""
    used = set()
    for sharding in jax.tree.leaves(state_shardings(variables, mesh)):
        for axes in sharding.spec:
            used.update((axes,) if isinstance(axes, str) else axes or ())
    fixes = {
        'fsdp': 'a number that divides d_model',
        'tensor': 'a number that divides num_heads, d_ff or the vocabulary',
    }
    for axis, fix in fixes.items():
        size = mesh.shape[axis]
        if size > 1 and axis not in used:
            raise UserError(
                f'mesh.{axis}={size} shards no parameter of this model. Choose {fix}.'
            )


def attach_shardings(tree: Any, shardings: Any) -> Any:
    def place(x, sharding):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    return jax.tree.map(place, tree, jax.tree.broadcast(shardings, tree))


def abstract_key(devices: DeviceMesh) -> Any:
    return attach_shardings(jax.eval_shape(jax.random.key, 0), devices.everywhere())


# (model, key, given) → variables. Tracing is slow, and a run uses the trace several
# times. JAX shares it between equal models if the keys are like `abstract_key`.
first_variables = jax.jit(init_variables, static_argnums=0)


def abstract_variables(model: Model, devices: DeviceMesh | None = None) -> Any:
    """Returns shapes, dtypes and shardings of the model's variables."""
    devices = devices or make_mesh()
    abstract = first_variables.eval_shape(model, abstract_key(devices), {})
    return attach_shardings(abstract, devices.state(abstract))

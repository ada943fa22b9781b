"""Where arrays live: on a mesh of devices, as `flaxformer_lite.sharding` divides."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from experiments.errors import UserError
from experiments.runtime import processes
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

    def readable_rows(self) -> NamedSharding:
        """Of rows that a process is to read: all of them, on devices of its own."""
        rows = self.rows()
        return rows if rows.is_fully_addressable else self.everywhere()

    def key(self, seed: int) -> jax.Array:
        """A random key, on every device."""
        everywhere = self.everywhere()
        words = np.asarray(jax.random.key_data(jax.random.key(seed)))
        # A key itself cannot be put on devices of other processes.
        as_key = jax.jit(jax.random.wrap_key_data, out_shardings=everywhere)
        return as_key(put(words, everywhere))

    def describe(self) -> str:
        """`data 2 × fsdp 4`, of the axes that divide anything."""
        divided = [
            f'{axis} {size}' for axis, size in self.mesh.shape.items() if size > 1
        ]
        return ' × '.join(divided)


@dataclasses.dataclass(frozen=True)
class Layout:
    """How devices share the runs that one program trains.

    Where the devices along `data` divide the number of the runs, each trains runs of
    its own, and exchanges nothing with the others. Elsewhere they divide the rows of
    every batch, as they do of a run that is trained alone.

    Attributes:
      devices: all.
      runs: how many are trained at once. Of several, arrays have an axis R in front.
    """

    devices: DeviceMesh
    runs: int = 1

    @property
    def divides_runs(self) -> bool:
        """Whether devices train runs of their own."""
        data = self.devices.mesh.shape['data']
        return 1 < data and self.runs % data == 0

    @property
    def row_shards(self) -> int:
        """Among how many devices the rows of a batch are divided."""
        return math.prod(self.devices.mesh.shape[axis] for axis in self._row_axes)

    @property
    def _row_axes(self) -> tuple[str, ...]:
        return ('fsdp',) if self.divides_runs else ROW_AXES

    @property
    def _run_axis(self) -> str | None:
        return 'data' if self.divides_runs else None

    def batch(self) -> NamedSharding:
        """Of the arrays of a batch: of the rows, behind the axis of several runs."""
        return self.runs_and_rows() if self.runs > 1 else self.devices.rows()

    def runs_and_rows(self) -> NamedSharding:
        """Of an array [runs, rows], of a single run as well."""
        return self._sharding([self._run_axis, self._row_axes])

    def state(self, tree: Any) -> Any:
        """The sharding of each array of all runs, by the arrays of one run."""

        def of_all(of_one: NamedSharding) -> NamedSharding:
            return self._sharding([self._run_axis, *of_one.spec])

        of_one = self.devices.state(tree)
        return of_one if self.runs == 1 else jax.tree.map(of_all, of_one)

    def _sharding(self, axes: Sequence[Any]) -> NamedSharding:
        return NamedSharding(self.devices.mesh, PartitionSpec(*axes))

    def own_rows(self, run: int, rows: int) -> np.ndarray:
        """The rows, of so many of a run's batch, that this process's devices have.

        Returns:
          Their numbers, ascending.
        """
        return _own_rows(self, rows)[run]

    def put(
        self, batches: Sequence[Mapping[str, np.ndarray]], rows: int
    ) -> dict[str, jax.Array]:
        """The batches of the runs as one, on the devices.

        Args:
          batches: of each run the `own_rows` of its arrays [rows, length].
          rows: of a whole batch.
        """
        return {
            name: self._put([batch[name] for batch in batches], rows)
            for name in batches[0]
        }

    def _put(self, arrays: Sequence[np.ndarray], rows: int) -> jax.Array:
        def part(index: Any) -> np.ndarray:
            *of_runs, of_rows, _ = index
            parts = []
            for run in range(self.runs)[of_runs[0] if of_runs else slice(None)]:
                first, end, _ = of_rows.indices(rows)
                own = np.searchsorted(self.own_rows(run, rows), [first, end])
                parts.append(arrays[run][slice(*own)])
            return np.stack(parts) if of_runs else parts[0]

        shape = (rows, arrays[0].shape[1])
        if self.runs > 1:
            shape = (self.runs, *shape)
        return jax.make_array_from_callback(shape, self.batch(), part)


@functools.lru_cache(maxsize=64)
def _own_rows(layout: Layout, rows: int) -> list[np.ndarray]:
    """`Layout.own_rows` of each run."""
    shape = (layout.runs, rows)
    is_own = np.zeros(shape, bool)
    parts = layout.runs_and_rows().addressable_devices_indices_map(shape)
    for part in parts.values():
        is_own[part] = True
    return [np.flatnonzero(is_own_of_run) for is_own_of_run in is_own]


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

    def sums() -> list[jax.Array]:
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

    def place(x: np.ndarray, sharding: NamedSharding) -> jax.Array:
        return jax.make_array_from_callback(x.shape, sharding, lambda part: x[part])

    return jax.tree.map(place, tree, _for_each(tree, shardings))


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

    def place(x: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    return jax.tree.map(place, tree, _for_each(tree, shardings))


def _for_each(tree: Any, shardings: Any) -> Any:
    if isinstance(shardings, NamedSharding):
        return jax.tree.map(lambda _: shardings, tree)
    return shardings

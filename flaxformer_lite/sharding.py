"""Sharding of arrays over the devices of a mesh.

A mesh has one or more of the axes below; their sizes multiply to the number of devices:

| axis | sharded over it |
|---|---|
| data | the rows of a batch; parameters are replicated |
| fsdp | the rows of a batch, and parameters, which are gathered for use; experts |
| tensor | heads, d_ff and the vocabulary, in parameters and activations |

Set the mesh around the call; functions find it when they are traced:

    axis_types = (jax.sharding.AxisType.Auto,) * 3
    mesh = jax.make_mesh((2, 2, 2), ('data', 'fsdp', 'tensor'), axis_types=axis_types)
    with jax.set_mesh(mesh):
        state, metrics = step(state, batch, key)

Shard the rows of the batch over `data` and `fsdp`, and the state by `state_shardings`.
Results equal those of one device up to rounding.

Rules apply to the letters of axes (see `shapes`). A dimension stays whole if the mesh
axis doesn't divide it evenly.

Sources: Rajbhandari et al. 2020 ("ZeRO") for `fsdp`; Shoeybi et al. 2019
("Megatron-LM") for `tensor`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from flaxformer_lite.jax_compat import with_sharding_constraint

__all__ = [
    'AXES',
    'by_device',
    'gather',
    'is_divided',
    'map_rows',
    'place',
    'state_shardings',
]

AXES = ('data', 'fsdp', 'tensor')
ROW_AXES = ('data', 'fsdp')
REPLICATED = PartitionSpec()

# The letter of a dimension → the mesh axes that shard it.
_TENSOR_AXES: dict[str, tuple[str, ...]] = dict.fromkeys('HGFV', ('tensor',))
_EXPERTS = {'E': ('fsdp',)}
ACTIVATION_AXES = {'B': ROW_AXES, **_EXPERTS, **_TENSOR_AXES}
PARAMETER_AXES = {'D': ('fsdp',), **_EXPERTS, **_TENSOR_AXES}

# The end of a parameter's path → the letters of its last dimensions.
PARAMETER_LETTERS = {
    ('embedding',): 'VD',
    ('source_embedding',): 'VD',
    ('output',): 'VD',
    ('output_bias',): 'V',
    ('query', 'kernel'): 'DHK',
    ('query', 'bias'): 'HK',
    ('key', 'kernel'): 'DGK',
    ('key', 'bias'): 'GK',
    ('value', 'kernel'): 'DGU',
    ('value', 'bias'): 'GU',
    ('out_proj', 'kernel'): 'HUD',
    ('head_gate', 'kernel'): 'DHU',
    ('lambda', 'kernel'): 'DH',
    ('forget_gate', 'kernel'): 'DH',
    ('forget_gate', 'bias'): 'H',
    ('positions', 'projection'): 'DHK',
    ('positions', 'bias'): 'HK',
    ('up', 'kernel'): 'DF',
    ('gate', 'kernel'): 'DF',
    ('down', 'kernel'): 'FD',
    ('experts', 'up', 'kernel'): 'EDF',
    ('experts', 'up', 'bias'): 'EF',
    ('experts', 'down', 'kernel'): 'EFD',
    ('experts', 'down', 'bias'): 'ED',
}


def place(x: jax.Array, letters: str) -> jax.Array:
    """Shards an activation by the letters of its axes, such as 'BTHK'."""
    spec = _spec(letters, x.shape, ACTIVATION_AXES, _sizes())
    if spec == REPLICATED:
        return x
    return with_sharding_constraint(x, spec)


def gather(parameter: jax.Array, path: tuple[str, ...]) -> jax.Array:
    """Gathers a parameter over `fsdp` before a matrix product.

    Cast the parameter to the compute dtype first.

    Args:
      path: The end of its path, such as ('query', 'kernel').
    """
    sizes = _sizes()
    if 'fsdp' not in sizes:
        return parameter
    del sizes['fsdp']
    spec = _parameter_spec(path, parameter.shape, sizes)
    return with_sharding_constraint(parameter, spec)


def state_shardings(tree: Any, mesh: Mesh | AbstractMesh) -> Any:
    """Returns shardings for a tree of parameters, or a tree that contains such trees.

    Optimizer moments are sharded like their parameters. Arrays without a rule are
    sharded over `fsdp` along their largest dimension, if they have at least two. A
    leading axis of runs or layers stays whole.

    Args:
      tree: Arrays, or their shapes and dtypes.

    Examples:
      >>> mesh = jax.sharding.AbstractMesh((2, 2), ('fsdp', 'tensor'))
      >>> params = {'up': {'kernel': jax.ShapeDtypeStruct((512, 2048), 'float32')}}
      >>> tuple(state_shardings(params, mesh)['up']['kernel'].spec)
      ('fsdp', 'tensor')
    """

    def sharding(path: Any, x: Any) -> NamedSharding:
        names = tuple(str(getattr(key, 'key', '')) for key in path)
        return NamedSharding(mesh, _parameter_spec(names, x.shape, mesh.shape))

    return jax.tree.map_with_path(sharding, tree)


def _parameter_spec(
    path: tuple[str, ...], shape: tuple[int, ...], sizes: Mapping[str, int]
) -> PartitionSpec:
    endings = (path[-length:] for length in (3, 2, 1))
    letters = next(
        (PARAMETER_LETTERS[end] for end in endings if end in PARAMETER_LETTERS), ''
    )
    if not letters or len(letters) > len(shape):
        return _largest_over_fsdp(shape, sizes)
    leading = ' ' * (len(shape) - len(letters))
    return _spec(leading + letters, shape, PARAMETER_AXES, sizes)


def _largest_over_fsdp(
    shape: tuple[int, ...], sizes: Mapping[str, int]
) -> PartitionSpec:
    if len(shape) < 2:
        return REPLICATED
    largest = shape.index(max(shape))
    letters = ''.join('D' if axis == largest else ' ' for axis in range(len(shape)))
    return _spec(letters, shape, PARAMETER_AXES, sizes)


def _spec(
    letters: str,
    shape: tuple[int, ...],
    rules: Mapping[str, tuple[str, ...]],
    sizes: Mapping[str, int],
) -> PartitionSpec:
    divided = []
    free = {axis for axis, size in sizes.items() if size > 1}
    for letter, length in zip(letters, shape, strict=True):
        axes = tuple(axis for axis in rules.get(letter, ()) if axis in free)
        parts = math.prod(sizes[axis] for axis in axes)
        divides = parts > 1 and length % parts == 0
        divided.append(axes if divides else None)
        if divides:
            free.difference_update(axes)
    if not any(divided):
        return REPLICATED
    return PartitionSpec(*divided)


def _sizes() -> dict[str, int]:
    """Returns axis → size, for axes larger than 1 of the context mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    found = {}
    for axis, axis_type in zip(mesh.axis_names, mesh.axis_types, strict=True):
        if axis in AXES and axis_type == AxisType.Auto and mesh.shape[axis] > 1:
            found[axis] = mesh.shape[axis]
    return found


def row_axes() -> tuple[str, ...]:
    """Returns the axes of the context mesh that shard the rows of a batch."""
    return tuple(axis for axis in ROW_AXES if axis in _sizes())


def rows_spec() -> PartitionSpec:
    """Returns the spec of an array whose first dimension is the rows."""
    return PartitionSpec(row_axes())


def is_divided(rows: int) -> bool:
    """Returns whether the devices of the context mesh divide `rows` evenly.

    False within `by_device`, where a device already sees only its own rows.
    """
    sizes = _sizes()
    parts = math.prod(sizes[axis] for axis in row_axes())
    return parts > 1 and rows % parts == 0


def by_device(
    function: Callable[..., Any],
    in_specs: Any,
    out_specs: Any,
    axes: tuple[str, ...] = ROW_AXES,
) -> Callable[..., Any]:
    """Returns a function that each device runs on its own shard.

    Devices communicate only where the function does over `axes`, so their loops may run
    for different numbers of steps.

    Args:
      in_specs: `rows_spec` or `REPLICATED` for each argument.
      out_specs: The same for each result; a `REPLICATED` result must be equal on all
        devices.
    """
    mesh = jax.sharding.get_abstract_mesh()
    dividing = _sizes()
    manual_axes = set(axes) & set(dividing)
    if manual_axes == set(dividing):
        # No axis is left for XLA to partition, so axes of size 1 become manual, too.
        manual_axes = {
            axis
            for axis, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
            if kind == AxisType.Auto
        }
    # check_vma requires a loop's initial values to be marked as varying over devices,
    # and zeros aren't.
    return jax.shard_map(
        function,
        in_specs=in_specs,
        out_specs=out_specs,
        axis_names=manual_axes,
        check_vma=False,
    )


def map_rows(
    function: Callable[..., Any], whole: tuple[Any, ...], divided: tuple[Any, ...]
) -> Any:
    """Calls function(*whole, *divided); each device handles its own rows if possible.

    Args:
      function: Rows must be independent, and the first axis of each result.
      whole: Arguments gathered over `fsdp` for all devices.
      divided: Arguments whose first axis is the rows.
    """
    # Not `len`: with a symbolic batch size it isn't an integer.
    rows = jax.tree.leaves(divided)[0].shape[0]
    if is_divided(rows):
        specs = (*[REPLICATED] * len(whole), *[rows_spec()] * len(divided))
        function = by_device(function, specs, rows_spec())
    return function(*whole, *divided)


# Number of devices among which `sum_over_data` divides the rows. Not an argument: all
# modules would have to pass it to dropout, which draws the bits of all rows. It is part
# of JAX's cache key, so a layer traced outside `sum_over_data` is traced again inside.
_shares_of_rows = jax.make_user_context(1)


def is_divided_by_data(rows: int) -> bool:
    """Returns whether the axis `data` of the context mesh divides `rows` evenly."""
    shares = _sizes().get('data', 1)
    return shares > 1 and rows % shares == 0


def sum_over_data(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Returns a function that sums `function` over the devices' rows along `data`.

    It sums once, at the end; XLA would sum in every loop iteration, as it does over
    `fsdp`.

    Args:
      function: (whole, divided) → a tree of sums over the rows, the first axis of
        `divided`; check `is_divided_by_data` first. Rows must be independent.
    """
    shares = _sizes()['data']

    def of_device(whole: Any, divided: Any) -> Any:
        with _shares_of_rows(shares):
            return jax.lax.psum(function(whole, divided), 'data')

    return by_device(
        of_device, (REPLICATED, PartitionSpec('data')), REPLICATED, axes=('data',)
    )


def all_rows(own: int) -> int:
    """Returns the batch's number of rows, given a device's in `sum_over_data`."""
    return own * _shares_of_rows.value


def first_row(own: int) -> jax.Array | int:
    """Returns the batch index of the first row that a device sees."""
    if _shares_of_rows.value == 1:
        return 0
    return jax.lax.axis_index('data') * own

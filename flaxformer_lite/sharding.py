"""How arrays are divided among the devices of a mesh.

A mesh has some of these axes, whose sizes multiply to the number of devices:

| axis | what its devices divide |
|---|---|
| data | the rows of a batch; each has all parameters |
| fsdp | the rows of a batch, and parameters, which are gathered where they are used |
| tensor | heads, d_ff and the vocabulary: parameters, and products of them |

What is traced in the context of a mesh finds it there:

    axis_types = (jax.sharding.AxisType.Auto,) * 3
    mesh = jax.make_mesh((2, 2, 2), ('data', 'fsdp', 'tensor'), axis_types=axis_types)
    with jax.set_mesh(mesh):
        state, metrics = step(state, batch, key)

The batch's rows should be divided over `data` and `fsdp`, and the state as
`state_shardings` says. Results are those of one device, but for rounding. Without a
mesh in context nothing is divided here. Gradients are summed over `data` once a step.

Rules go by the letters of axes (`shapes`), for activations and parameters alike. A
dimension that the devices of its axis do not divide evenly stays whole.

Sources: Rajbhandari et al. 2020 ("ZeRO") for `fsdp`; Shoeybi et al. 2019
("Megatron-LM") for `tensor`; Xu et al. 2021 ("GSPMD") for how XLA completes what is
said here.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from flaxformer_lite.jax_compat import with_sharding_constraint

AXES = ('data', 'fsdp', 'tensor')
ROW_AXES = ('data', 'fsdp')
WHOLE = PartitionSpec()

# The letter of a dimension → the axes of the mesh that divide it.
_OVER_TENSOR: dict[str, tuple[str, ...]] = dict.fromkeys('HGFV', ('tensor',))
OF_ACTIVATIONS = {'B': ROW_AXES, **_OVER_TENSOR}
OF_PARAMETERS = {'D': ('fsdp',), **_OVER_TENSOR}

# The end of a parameter's path → the letters of its last dimensions.
LETTERS = {
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
    ('positions', 'projection'): 'DHK',
    ('positions', 'bias'): 'HK',
    ('up', 'kernel'): 'DF',
    ('gate', 'kernel'): 'DF',
    ('down', 'kernel'): 'FD',
}


def place(x: jax.Array, letters: str) -> jax.Array:
    """The same activation, divided as the letters of its axes say.

    Args:
      x: one dimension for each letter.
      letters: such as 'BTHK'.
    """
    spec = _spec(letters, x.shape, OF_ACTIVATIONS, _sizes())
    if spec == WHOLE:
        return x
    return with_sharding_constraint(x, spec)


def gather(parameter: jax.Array, path: tuple[str, ...]) -> jax.Array:
    """The same parameter, no longer divided over `fsdp`: what a product needs.

    Without this XLA might gather the activations instead, which are larger. Give it the
    parameter in the compute dtype: half as much to send, if that is bfloat16.

    Args:
      parameter: any.
      path: the end of its path, such as ('query', 'kernel').
    """
    sizes = _sizes()
    if 'fsdp' not in sizes:
        return parameter
    del sizes['fsdp']
    spec = _parameter_spec(path, parameter.shape, sizes)
    return with_sharding_constraint(parameter, spec)


def state_shardings(tree: Any, mesh: Mesh | AbstractMesh) -> Any:
    """Where each array of a tree of parameters is, or of a tree made of such trees.

    So an optimizer's moments are where their parameters are. Arrays in no table are
    divided over `fsdp` along their largest dimension, unless they have one dimension
    or none. A dimension in front, of several runs or of layers, stays whole.

    Args:
      tree: of arrays, or of shapes and dtypes.
      mesh: with some of `AXES`.

    Returns:
      A tree of shardings.
    """

    def sharding(path: Any, x: Any) -> NamedSharding:
        names = tuple(str(getattr(key, 'key', '')) for key in path)
        return NamedSharding(mesh, _parameter_spec(names, x.shape, mesh.shape))

    return jax.tree.map_with_path(sharding, tree)


def _parameter_spec(
    path: tuple[str, ...], shape: tuple[int, ...], sizes: Mapping[str, int]
) -> PartitionSpec:
    letters = LETTERS.get(path[-2:], LETTERS.get(path[-1:], ''))
    if not letters or len(letters) > len(shape):
        return _largest_over_fsdp(shape, sizes)
    in_front = ' ' * (len(shape) - len(letters))
    return _spec(in_front + letters, shape, OF_PARAMETERS, sizes)


def _largest_over_fsdp(
    shape: tuple[int, ...], sizes: Mapping[str, int]
) -> PartitionSpec:
    if len(shape) < 2:
        return WHOLE
    largest = shape.index(max(shape))
    letters = ''.join('D' if axis == largest else ' ' for axis in range(len(shape)))
    return _spec(letters, shape, OF_PARAMETERS, sizes)


def _spec(
    letters: str,
    shape: tuple[int, ...],
    rules: Mapping[str, tuple[str, ...]],
    sizes: Mapping[str, int],
) -> PartitionSpec:
    """The axes that divide each dimension; `WHOLE` where none does."""
    divided = []
    for letter, length in zip(letters, shape, strict=True):
        axes = tuple(axis for axis in rules.get(letter, ()) if sizes.get(axis, 1) > 1)
        parts = math.prod(sizes[axis] for axis in axes)
        divides = parts > 1 and length % parts == 0
        divided.append(axes if divides else None)
    if not any(divided):
        return WHOLE
    return PartitionSpec(*divided)


def _sizes() -> dict[str, int]:
    """Axes of the mesh in context that divide anything → their numbers of devices.

    Within `by_device` those that it divides by are none of them.
    """
    mesh = jax.sharding.get_abstract_mesh()
    found = {}
    for axis, axis_type in zip(mesh.axis_names, mesh.axis_types, strict=True):
        if axis in AXES and axis_type == AxisType.Auto and mesh.shape[axis] > 1:
            found[axis] = mesh.shape[axis]
    return found


def row_axes() -> tuple[str, ...]:
    """The axes of the mesh in context that divide the rows of a batch."""
    return tuple(axis for axis in ROW_AXES if axis in _sizes())


def rows_spec() -> PartitionSpec:
    """Of an array whose first dimension is the rows."""
    return PartitionSpec(row_axes())


def is_divided(rows: int) -> bool:
    """Whether devices of the mesh in context share so many rows evenly.

    It is not so within `by_device`, where a device has its rows already.
    """
    sizes = _sizes()
    parts = math.prod(sizes[axis] for axis in row_axes())
    return parts > 1 and rows % parts == 0


def by_device(
    function: Callable,
    in_specs: Any,
    out_specs: Any,
    axes: tuple[str, ...] = ROW_AXES,
) -> Callable:
    """A function that each device runs for its own part.

    Devices with different parts exchange nothing, unless the function itself does it
    over `axes`. So they may go through its loops a different number of times. Over the
    other axes XLA goes on to divide what is in it.

    Args:
      function: of arrays, or of trees of arrays.
      in_specs: `rows_spec` or `WHOLE` of each argument.
      out_specs: the same of each result; what is `WHOLE` has to be equal on all
        devices.
      axes: those of the mesh that divide the parts.
    """
    mesh = jax.sharding.get_abstract_mesh()
    dividing = _sizes()
    by = set(axes) & set(dividing)
    if by == set(dividing):
        # Nobody divides what is in it, so that those of one device go along.
        by = {
            axis
            for axis, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
            if kind == AxisType.Auto
        }
    # Without the check, for it asks that a loop's first values be marked as different
    # from device to device, which zeros are not.
    return jax.shard_map(
        function,
        in_specs=in_specs,
        out_specs=out_specs,
        axis_names=by,
        check_vma=False,
    )


def map_rows(function: Callable, whole: tuple, divided: tuple) -> Any:
    """function(*whole, *divided), by each device for its own rows where several do it.

    Args:
      function: of arrays, or of trees of arrays. What it makes of a row must not depend
        on other rows; the rows are the first axis of each result.
      whole: arguments that all devices have alike. What is divided over `fsdp` is
        gathered.
      divided: arguments whose first axis is the rows.
    """
    # Not `len`: in a program for any number of rows it is no whole number.
    rows = jax.tree.leaves(divided)[0].shape[0]
    if is_divided(rows):
        specs = (*[WHOLE] * len(whole), *[rows_spec()] * len(divided))
        function = by_device(function, specs, rows_spec())
    return function(*whole, *divided)


# Among how many devices `sum_over_data` has divided the rows. JAX keys its caches by
# it: a layer that was traced outside is traced anew within.
_shares_of_rows = jax.make_user_context(1)


def is_divided_by_data(rows: int) -> bool:
    """Whether the axis `data` of the mesh in context divides so many rows evenly."""
    shares = _sizes().get('data', 1)
    return shares > 1 and rows % shares == 0


def sum_over_data(function: Callable) -> Callable:
    """The sum of what a function makes of each device's rows along the axis `data`.

    It is summed once, when all of it is there. XLA by itself sums a gradient wherever
    one is made: in each turn of a loop, and for each use of a parameter. Over `fsdp` it
    goes on to do so, for there no device has room for whole gradients.

    Args:
      function: (whole, divided) → a tree of sums over the rows, which are the first
        axis of what is divided; `is_divided_by_data` says whether they can be. What it
        makes of a row must not depend on other rows. Dropout draws what it does without
        this.
    """
    shares = _sizes()['data']

    def of_device(whole: Any, divided: Any) -> Any:
        with _shares_of_rows(shares):
            return jax.lax.psum(function(whole, divided), 'data')

    return by_device(of_device, (WHOLE, PartitionSpec('data')), WHOLE, axes=('data',))


def all_rows(own: int) -> int:
    """How many rows a batch has of which a device sees so many in `sum_over_data`."""
    return own * _shares_of_rows.value


def first_row(own: int) -> jax.Array | int:
    """The number in the batch of the first of so many rows that a device sees."""
    if _shares_of_rows.value == 1:
        return 0
    return jax.lax.axis_index('data') * own

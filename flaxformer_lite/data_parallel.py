"""Data parallelism: each device works on rows of a batch of its own.

The devices are those of the mesh axis `data`. What is traced in the context of a mesh
with such an axis finds it there:

    mesh = jax.make_mesh((8,), ('data',), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.set_mesh(mesh):
        state, metrics = step(state, batch, key)

The batch's rows should be divided over that axis, and all else be whole on each device.
Without a mesh in context nothing is divided here, and XLA alone decides how a program
runs on several devices.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AxisType, PartitionSpec

AXIS = 'data'
ROWS = PartitionSpec(AXIS)  # an array whose first axis is divided
WHOLE = PartitionSpec()


def is_divided(rows: int) -> bool:
    """Whether several devices of the mesh in context share so many rows evenly.

    It is not so within `by_device`, where a device has its rows already.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if AXIS not in mesh.axis_names:
        return False
    axis_type = mesh.axis_types[mesh.axis_names.index(AXIS)]
    devices = mesh.shape[AXIS]
    return axis_type == AxisType.Auto and devices > 1 and rows % devices == 0


def by_device(function: Callable, in_specs: Any, out_specs: Any) -> Callable:
    """A function that each device runs for its own rows.

    Devices exchange nothing, unless the function itself sums over `AXIS`. So they may
    go through its loops a different number of times.

    Args:
      function: of arrays, or of trees of arrays.
      in_specs: `ROWS` or `WHOLE` of each argument.
      out_specs: the same of each result; what is `WHOLE` has to be equal on all
        devices.
    """
    # Without the check, for it asks that a loop's first values be marked as different
    # from device to device, which zeros are not.
    return jax.shard_map(
        function, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )


def map_rows(function: Callable, whole: tuple, divided: tuple) -> Any:
    """function(*whole, *divided), by each device for its own rows where several do it.

    Args:
      function: of arrays, or of trees of arrays. What it makes of a row must not depend
        on other rows; the rows are the first axis of each result.
      whole: arguments that all devices have alike.
      divided: arguments whose first axis is the rows.
    """
    rows = len(jax.tree.leaves(divided)[0])
    if is_divided(rows):
        specs = (*[WHOLE] * len(whole), *[ROWS] * len(divided))
        function = by_device(function, specs, ROWS)
    return function(*whole, *divided)

"""Per-layer context: the index of the running layer, and values of earlier layers."""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from flax import struct


class Published(struct.PyTreeNode):
    """A value that a layer handed to later layers.

    Attributes:
      value: Array with the batch in axis 0.
      exists: bool scalar, False before a layer has published it; None outside of a
        scan.
    """

    value: jax.Array
    exists: jax.Array | None = None


class LayerScope(struct.PyTreeNode):
    """The context of a layer that its stack provides.

    Attributes:
      index: Number of the layer, from 0; int, or int32 scalar in a scan.
      published: Values of earlier layers by name.
    """

    index: jax.Array | int = 0
    published: dict[str, Published] = dataclasses.field(default_factory=dict)


# Not an argument: attention, residual connections and blocks, also those of users, have
# signatures without it, and most variants don't need it.
_scope: contextvars.ContextVar[LayerScope | None] = contextvars.ContextVar(
    'scope', default=None
)


@contextlib.contextmanager
def running_layer(scope: LayerScope) -> Iterator[dict[str, Published]]:
    """Context of `layer_index`, `published` and `publish`, around each layer's call.

    Its value holds what later layers find published.
    """
    own = scope.replace(published=dict(scope.published))
    token = _scope.set(own)
    try:
        yield own.published
    finally:
        _scope.reset(token)


def layer_index() -> jax.Array | int:
    """Returns the number of the running layer in its stack, from 0.

    It is traced if the stack scans its layers, and 0 outside of a stack.

    Examples:
      >>> with running_layer(LayerScope(index=3)):
      ...     layer_index()
      3
    """
    scope = _scope.get()
    return 0 if scope is None else scope.index


def published(name: str, default: jax.Array) -> tuple[jax.Array, jax.Array | bool]:
    """Returns a value that an earlier layer published, and whether one did.

    Args:
      name: As for `publish`.
      default: Returned if no earlier layer published the value, or outside of a stack.
    """
    scope = _scope.get()
    if scope is None or name not in scope.published:
        return default, False
    found = scope.published[name]
    if found.exists is None:
        return found.value, True
    return jnp.where(found.exists, found.value, default), found.exists


def publish(name: str, value: jax.Array) -> None:
    """Hands a value to later layers of the stack, which find it by `published`.

    Outside of a stack, this does nothing.

    Args:
      name: A key of the block's `publishes`.
      value: Array with the batch in axis 0.

    Examples:
      >>> with running_layer(LayerScope()) as for_later:
      ...     publish('first', jnp.ones(2))

      >>> with running_layer(LayerScope(index=1, published=for_later)):
      ...     published('first', default=jnp.zeros(2))
      (Array([1., 1.], dtype=float32), True)
    """
    scope = _scope.get()
    if scope is None:
        return
    earlier = scope.published.get(name)
    in_scan = earlier is not None and earlier.exists is not None
    exists = jnp.ones((), bool) if in_scan else None
    scope.published[name] = Published(value, exists)


@dataclasses.dataclass
class LayerOutputs:
    """The outputs of a stack's layers. A call of the stack fills in its fields.

    Attributes:
      streams: The input of the first layer, then the residual stream after each layer.
        `Stack.normalize` makes them outputs of the stack.
      published: Values that layers before the last one published, by name.
    """

    streams: list[jax.Array] = dataclasses.field(default_factory=list)
    published: dict[str, Published] = dataclasses.field(default_factory=dict)

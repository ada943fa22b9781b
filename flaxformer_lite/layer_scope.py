"""Facts about the running layer that its stack knows, such as its number.

Most components need none of them, so they appear in no signature.
"""

import contextlib
import contextvars
from collections.abc import Iterator

import jax
from flax import struct


class LayerScope(struct.PyTreeNode):
    """The place of a layer in its stack.

    Attributes:
      index: Number of the layer, from 0; int, or int32 scalar in a scan.
    """

    index: jax.Array | int = 0


_scope: contextvars.ContextVar[LayerScope | None] = contextvars.ContextVar(
    'scope', default=None
)


@contextlib.contextmanager
def running_layer(scope: LayerScope) -> Iterator[None]:
    """Context in which `layer_index` returns that of `scope`.

    A stack opens the context around each layer's call, so arrays belong to the trace
    that reads them.
    """
    token = _scope.set(scope)
    try:
        yield
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

"""Access to the active Flax interceptors (`nn.intercept_methods`)."""

import inspect
import weakref
from collections.abc import Callable
from typing import Any

# Flax has no public accessor for the stack of interceptors.
from flax.linen.module import _global_interceptor_stack


class InterceptorKey:
    """A cache key of an interceptor or observer, which it does not keep alive.

    Two keys are equal if their interceptor is the same object and still alive. A dead
    interceptor's key equals no other, so a new object at its address can't match.
    """

    def __init__(self, interceptor: Callable[..., Any]):
        # Each access creates a new bound method, so a weak reference would die at once.
        is_method = inspect.ismethod(interceptor)
        self._weak_reference = (weakref.WeakMethod if is_method else weakref.ref)(
            interceptor
        )
        self._hash = hash(interceptor)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, InterceptorKey):
            return NotImplemented
        interceptor = self._weak_reference()
        return interceptor is not None and interceptor == other._weak_reference()

    def __hash__(self) -> int:
        return self._hash


def interceptor_keys() -> tuple[InterceptorKey, ...]:
    """Returns keys of the active interceptors, innermost first.

    Reuse a compiled program or a trace only if the keys are equal.
    """
    return tuple(map(InterceptorKey, _global_interceptor_stack))

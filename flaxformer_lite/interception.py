"""Access to the active Flax interceptors (`nn.intercept_methods`)."""

from collections.abc import Callable
from typing import Any

# Flax has no public accessor.
from flax.linen.module import _global_interceptor_stack


def interceptors() -> tuple[Callable[..., Any], ...]:
    """Returns the active interceptors, innermost first.

    Reuse a compiled program or a trace only if the interceptors are the same.
    """
    return tuple(_global_interceptor_stack)

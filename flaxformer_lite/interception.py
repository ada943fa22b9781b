"""Who listens to a model's calls: Flax's interceptors, `nn.intercept_methods`."""

from collections.abc import Callable
from typing import Any

# Flax has no public way to ask.
from flax.linen.module import _global_interceptor_stack


def interceptors() -> tuple[Callable[..., Any], ...]:
    """Those that are active now, innermost first.

    A compiled program or a trace that is used again must have been made with the same.
    """
    return tuple(_global_interceptor_stack)

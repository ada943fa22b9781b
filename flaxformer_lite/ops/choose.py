"""Selection of the tuned or the reference version of each operation."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax

# Not an argument: all modules, also those of users, would have to pass it to the
# operations that they call. JAX includes user contexts in its cache keys: a function
# traced with the tuned versions is traced again within `use_reference`, and vice versa.
_reference = jax.make_user_context(False)


def use_reference() -> contextlib.AbstractContextManager[Any]:
    """Returns a context manager in which operations of `ops/` use plain formulas.

    It takes effect during tracing, so call a `jax.jit` function within it, too.

    Examples:
      >>> import jax.numpy as jnp
      >>> from flaxformer_lite.ops.relu import relu
      >>> with use_reference():
      ...     _, tangent = jax.jvp(relu, (jnp.array([-1.0, 2.0]),), (jnp.ones(2),))

      >>> print(tangent)
      [0. 1.]
    """
    return _reference(True)


def choose(
    reference: Callable, tuned: Callable, only_on: str | None = None
) -> Callable:
    """Returns a function that calls `reference` or `tuned`, with their signature.

    Args:
      only_on: Platform of `tuned`, such as 'cpu'; None for all.
    """

    @functools.wraps(tuned)
    def chosen(*arguments):
        if _reference.value:
            return reference(*arguments)
        if only_on is None:
            return tuned(*arguments)
        return jax.lax.platform_dependent(
            *arguments, **{only_on: tuned}, default=reference
        )

    return chosen

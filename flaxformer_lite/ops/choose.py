"""Which version of an operation runs: the tuned one or the reference."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax

# JAX keys its caches by a user context: a function that was traced with the tuned
# versions is traced again within `use_reference`, and the other way round.
_reference = jax.make_user_context(False)


def use_reference() -> contextlib.AbstractContextManager[Any]:
    """`with use_reference():` runs every operation of `ops/` by its plain formula.

    It decides when a function is traced. It has to be open around the call of what
    `jax.jit` compiled, too: that is traced anew where the switch has changed.
    """
    return _reference(True)


def choose(
    reference: Callable, tuned: Callable, only_on: str | None = None
) -> Callable:
    """A function that calls `reference` or `tuned`, which take and return the same.

    Args:
      reference: the plain formula.
      tuned: a faster version of it.
      only_on: the platform that `tuned` is for, such as 'cpu'; None for all.
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

"""The context in which models apply interventions."""

import contextlib
from collections.abc import Iterator
from typing import Any, Self

import jax
from flax import linen as nn

from flaxformer_lite.interventions.hooks import Hooks
from flaxformer_lite.interventions.names import Interventions, Where, matches
from flaxformer_lite.interventions.places import Places


@contextlib.contextmanager
def intervene(
    interventions: Interventions, row_B: jax.Array | None = None
) -> Iterator[None]:
    """Context in which models apply functions to their activations.

        with intervene({'decoder/layer_1/mlp_out': add(0.1 * direction_D)}):
            logits = model.apply(variables, source, inputs)

    It also affects `record`, `log_probs` and `loss_sums`. `generate` takes
    `interventions` as an argument. With `jax.jit`, open the context in the function and
    pass the interventions as an argument, to reuse the program for other values. A
    function of your own must then be `jax.tree_util.Partial(function, *arrays)`.

    Scanned layers need `model.with_separate_layers()` and the variables of
    `layers.scanned_stack.unstack_layers`.

    Args:
      interventions: Functions (value, where) → value, by name. '*' matches any part of
        a name between slashes. Several matching functions apply in alphabetical order
        of their names.
      row_B: Index of each row in the batch, if a call has only some of the rows.

    Raises:
      ValueError: A model was called in the context, and a name matched no activation.
    """
    intervened = Intervened(interventions, Places(row_B))
    with intervened.active():
        yield
    intervened.check()


class Intervened:
    """Applies interventions and remembers which names matched an activation."""

    def __init__(self, interventions: Interventions, places: Places):
        self._interventions = interventions
        self._hooks = Hooks(self.wants, self.take, places)
        self._seen: dict[str, None] = {}
        self._used: set[str] = set()

    def active(self) -> contextlib.AbstractContextManager[None]:
        return nn.intercept_methods(self._hooks.intercept)

    def continued(self, places: Places) -> Self:
        other = type(self)(self._interventions, places)
        other._seen |= self._seen
        other._used |= self._used
        return other

    def check(self) -> None:
        """Raises ValueError if a name matched no activation of a called model."""
        for name in self._interventions:
            if self._seen and name not in self._used:
                known = ', '.join(self._seen)
                raise ValueError(
                    f'interventions: {name!r} is no activation here. Choose from '
                    f'{known}.'
                )

    def wants(self, name: str) -> bool:
        """Returns whether a function applies to an activation, and remembers it."""
        self._seen[name] = None
        return any(matches(key, name) for key in self._interventions)

    def take(self, value: jax.Array, where: Where) -> jax.Array:
        for key in sorted(self._interventions):
            if not matches(key, where.name):
                continue
            self._used.add(key)
            new = self._interventions[key](value, where)
            if new.shape != value.shape:
                raise ValueError(
                    f'{where.name}: the intervention must return the shape '
                    f'{value.shape}, not {new.shape}.'
                )
            value = new.astype(value.dtype)
        return value


def as_pytree(interventions: Interventions) -> dict[str, Any]:
    """Returns interventions that `jax.jit` accepts as an argument."""

    def wrap(function: Any) -> Any:
        if jax.tree_util.all_leaves([function]):
            return jax.tree_util.Partial(function)
        return function

    return {name: wrap(function) for name, function in interventions.items()}

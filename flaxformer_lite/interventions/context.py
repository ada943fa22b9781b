"""The context in which models apply interventions."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax

from flaxformer_lite.interventions.names import (
    Interventions,
    Where,
    check_functions,
    check_known,
    matches,
)
from flaxformer_lite.layers.scanned_stack import unstack_layers
from flaxformer_lite.models.base import Model
from flaxformer_lite.taps import observed_by
from flaxformer_lite.training.batch import check_variables


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

    Models that scan or share layers need `with_separate_layers` first.

    Args:
      interventions: Functions (value, where) → value, by name. '*' matches any part of
        a name between slashes. Several matching functions apply in alphabetical order
        of their names.
      row_B: Index of each row in the batch, if a call has only some of the rows.

    Raises:
      ValueError: A value isn't a function, or a model was called in the context, and a
        name matched no activation.
    """
    intervened = InterventionObserver(interventions, row_B)
    with observed_by(intervened):
        yield
    intervened.check()


@dataclasses.dataclass(eq=False)
class InterventionObserver:
    """Observer that applies interventions, and finds names without an activation.

    Attributes:
      row_B: As in `intervene`.
      seen: Names of all activations, in order.
    """

    interventions: Interventions
    row_B: jax.Array | None = None
    seen: dict[str, None] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        check_functions(self.interventions)

    def wants(self, name: str) -> bool:
        self.seen[name] = None
        return any(matches(key, name) for key in self.interventions)

    def __call__(self, value: jax.Array, where: Where) -> jax.Array:
        if self.row_B is not None:
            where = where._replace(row_B=self.row_B)
        for key in sorted(self.interventions):
            if not matches(key, where.name):
                continue
            new = self.interventions[key](value, where)
            shape = getattr(new, 'shape', type(new).__name__)
            if shape != value.shape:
                raise ValueError(
                    f'{where.name}: the intervention must return an array of shape '
                    f'{value.shape}, not {shape}.'
                )
            value = new.astype(value.dtype)
        return value

    def check(self) -> None:
        """Raises ValueError if a name matched no activation of a called model."""
        check_known('interventions', self.interventions, self.seen)


def as_pytree(interventions: Interventions) -> dict[str, Any]:
    """Returns interventions that `jax.jit` accepts as an argument.

    Use it to compile a function once for many values:

        logits = jax.jit(logits_with)(as_pytree({name: scale(0.0, heads=[3])}))

    Raises:
      ValueError: A value isn't a function.
    """

    def wrap(function: Any) -> Any:
        if jax.tree_util.all_leaves([function]):
            return jax.tree_util.Partial(function)
        return function

    check_functions(interventions)
    return {name: wrap(function) for name, function in interventions.items()}


def with_separate_layers(model: Model, variables: Any) -> tuple[Model, Any]:
    """Unrolls scanned layers and copies shared ones, so each layer has its own path.

    Use it before `intervene` if the model scans or shares layers.

        model, variables = with_separate_layers(model, variables)
    """
    check_variables(variables)
    if model.scans_layers:
        variables = unstack_layers(variables)
        model = model.with_separate_layers()
    return model.unshared(variables)

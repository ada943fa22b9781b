"""Forward passes that record and replace activations, with their axes."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

from flaxformer_lite.interventions.context import intervene, with_separate_layers
from flaxformer_lite.interventions.names import Intervention, Where
from flaxformer_lite.layers.stack import Stack
from flaxformer_lite.models.base import Model
from flaxformer_lite.remat import NONE
from flaxformer_lite.training.batch import Batch, source_and_inputs


class Activation(NamedTuple):
    """A recorded activation, and a letter per axis, as in `Where.axes`."""

    value: jax.Array
    axes: str


def prepare(model: Model, variables: Any) -> tuple[Model, Any]:
    """Returns an equivalent model whose layers run one by one, and its variables.

    Raises:
      ValueError: The model has no stacks of layers, or `variables` lacks the 'params'
        level.
    """
    if not model.stacks():
        raise ValueError(
            f'model: {type(model).__name__} has no stacks of layers. Use a Transformer.'
        )
    model, variables = with_separate_layers(model, variables)
    # With rematerialization, values would leak out of `jax.checkpoint`.
    return model.with_remat(NONE), variables


def decoder_of(model: Model) -> Stack:
    """Returns the stack whose output gives the logits."""
    return model.stacks()['decoder']


def logits_with(
    model: Model,
    variables: Any,
    batch: Batch,
    interventions: Mapping[str, Intervention],
) -> jax.Array:
    """Returns teacher-forced logits BTV of a prepared model with interventions."""
    with intervene(interventions):
        logits_BTV: Any = model.apply(variables, *source_and_inputs(batch))
    return logits_BTV


def activations(
    model: Model, variables: Any, batch: Batch, names: Sequence[str]
) -> tuple[jax.Array, dict[str, Activation]]:
    """Returns the logits of a prepared model, and the named activations.

    Args:
      names: As in `intervene`.

    Raises:
      ValueError: A name matches no activation.
    """
    found = {}

    def keep(value: jax.Array, where: Where) -> jax.Array:
        found[where.name] = Activation(value, where.axes)
        return value

    logits_BTV = logits_with(model, variables, batch, dict.fromkeys(names, keep))
    return logits_BTV, found


def shifted(shift: jax.Array) -> Any:
    return jax.tree_util.Partial(_shift, shift)


def _shift(shift, value, where):
    return value + shift

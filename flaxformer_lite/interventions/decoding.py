"""Decoding with interventions."""

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flaxformer_lite.interventions.context import (
    InterventionObserver,
    with_separate_layers,
)
from flaxformer_lite.interventions.names import Interventions, Where
from flaxformer_lite.models.base import Model
from flaxformer_lite.taps import observed_by
from flaxformer_lite.training.train_step import init_variables

# A trace takes seconds, and each batch needs its result. Keeps no model in memory.
_heads_of_models: weakref.WeakKeyDictionary[Model, dict[str, int]]
_heads_of_models = weakref.WeakKeyDictionary()


def number_of_heads(model: Model) -> dict[str, int]:
    """Returns the number of heads of each activation that has heads, by name."""
    if model not in _heads_of_models:
        _heads_of_models[model] = _count_heads(model)
    return _heads_of_models[model]


def _count_heads(model: Model) -> dict[str, int]:
    counter = _HeadCounter()

    def run(key):
        separate, variables = with_separate_layers(model, init_variables(model, key))
        token_BT = jnp.ones((1, 1), jnp.int32)
        with observed_by(counter):
            separate.apply(variables, token_BT, token_BT)

    jax.eval_shape(run, jax.random.key(0))
    return counter.found


class _HeadCounter:
    """Observer that counts the heads of activations."""

    def __init__(self):
        self.found: dict[str, int] = {}

    def wants(self, name: str) -> bool:
        return True

    def __call__(self, value: jax.Array, where: Where) -> jax.Array:
        if 'H' in where.axes:
            self.found[where.name] = value.shape[where.axes.index('H')]
        return value


class InterventionState(NamedTuple):
    """Decoding state of a model with interventions.

    Attributes:
      inner: The model's own state.
      row_B: Index of each row in the batch.
    """

    inner: Any
    row_B: jax.Array

    def allocate(self, hypotheses: int, tokens: int) -> 'InterventionState':
        return self._replace(inner=self.inner.allocate(hypotheses, tokens))


def decode_functions(
    model: Model,
    variables: Any,
    interventions: Interventions,
    source_BS: jax.Array,
    row_B: jax.Array,
) -> tuple[Callable, InterventionState]:
    """Returns `decode_step` with interventions, and the state after prefill.

    Args:
      model: Has separate layers.
      row_B: Index of each row in the batch.
    """
    prefill = InterventionObserver(interventions, row_B)
    with observed_by(prefill):
        state = model.apply(variables, source_BS, method='prefill')

    def decode_step(token_BN, state, beam):
        # Some names occur only in the prefill.
        step = InterventionObserver(interventions, state.row_B, prefill.seen)
        with observed_by(step):
            logits_BNV, new = model.apply(
                variables, token_BN, state.inner, beam, method='decode_step'
            )
        step.check()
        return logits_BNV, InterventionState(new, state.row_B)

    return decode_step, InterventionState(state, row_B)

"""Decoding with interventions."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from flaxformer_lite.interventions.context import InterventionObserver
from flaxformer_lite.interventions.names import Interventions
from flaxformer_lite.models.base import Model
from flaxformer_lite.taps import observed_by


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

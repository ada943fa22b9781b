"""Decoding with interventions."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from flaxformer_lite.interventions.context import Intervened
from flaxformer_lite.interventions.names import Interventions
from flaxformer_lite.interventions.places import Places
from flaxformer_lite.models.base import Model


class InterventionState(NamedTuple):
    """Decoding state of a model with interventions."""

    model: Any
    row_B: jax.Array

    def allocate(self, hypotheses: int, tokens: int) -> 'InterventionState':
        return self._replace(model=self.model.allocate(hypotheses, tokens))


def decode_functions(
    model: Model,
    variables: Any,
    interventions: Interventions,
    source_BS: jax.Array,
    row_B: jax.Array,
) -> tuple[Callable, InterventionState]:
    # The indices of a decoder's tokens start after the source if it reads both.
    offset = 0 if 'encoder' in model.stacks() else source_BS.shape[1]
    prefill = Intervened(interventions, Places(row_B, offset))
    with prefill.active():
        state = model.apply(variables, source_BS, method='prefill')

    def decode_step(token_BN, state, beam):
        step = prefill.continued(Places(state.row_B, offset))
        with step.active():
            logits_BNV, new = model.apply(
                variables, token_BN, state.model, beam, method='decode_step'
            )
        step.check()
        return logits_BNV, InterventionState(new, state.row_B)

    return decode_step, InterventionState(state, row_B)

"""Several models of one vocabulary decode as one: the mean of probabilities."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.kv_cache import BeamState
from flaxformer_lite.models.base import DecodeState, Model, Tokens
from flaxformer_lite.special_tokens import SpecialTokens


class EnsembleState(NamedTuple):
    """The decoding state of each model."""

    states: tuple[DecodeState, ...]

    def allocate(self, hypotheses: int, tokens: int) -> 'EnsembleState':
        """Makes room for so many tokens of each hypothesis of a sentence."""
        return EnsembleState(
            tuple(state.allocate(hypotheses, tokens) for state in self.states)
        )


class Ensemble(nn.Module):
    """p(y_t | y_<t, x) = 1/M Σ_m p_m(y_t | y_<t, x): logits are the log of that mean.

    It is called, and its `prefill` and `decode_step` are, as a `Model`'s.

    Attributes:
      models: each an object of its own.
    """

    models: Sequence[Model]

    @property
    def special_tokens(self) -> SpecialTokens:
        """Those of the models, which have one vocabulary."""
        return self.models[0].special_tokens

    @property
    def max_length(self) -> int | None:
        """The smallest limit of the models."""
        limits = [model.max_length for model in self.models]
        return min((limit for limit in limits if limit is not None), default=None)

    def __call__(self, source: Tokens, inputs: Tokens) -> jax.Array:
        """Teacher-forced log of the mean probability, BTV; as a `Model` is called."""
        return _log_mean([model(source, inputs) for model in self.models])

    def prefill(self, source_BS: jax.Array) -> EnsembleState:
        """Each model reads the source once."""
        return EnsembleState(tuple(model.prefill(source_BS) for model in self.models))

    def decode_step(
        self, token_BN: jax.Array, state: EnsembleState, beam: BeamState
    ) -> tuple[jax.Array, EnsembleState]:
        """The next token of each hypothesis → log of the mean probability, BNV."""
        logits_MBNV = []
        states = []
        for model, model_state in zip(self.models, state.states, strict=True):
            logits_BNV, model_state = model.decode_step(token_BN, model_state, beam)
            logits_MBNV.append(logits_BNV)
            states.append(model_state)
        return _log_mean(logits_MBNV), EnsembleState(tuple(states))


def _log_mean(logits_MBTV: Sequence[jax.Array]) -> jax.Array:
    """The log of the mean of the models' probabilities."""
    log_p_MBTV = jnp.stack([jax.nn.log_softmax(x_BTV) for x_BTV in logits_MBTV])
    return jax.nn.logsumexp(log_p_MBTV, axis=0) - jnp.log(len(logits_MBTV))


def ensemble(models: Sequence[Model]) -> Ensemble:
    """The models as one. One model may be in it several times, with other variables."""
    return Ensemble(tuple(model.copy(parent=None, name=None) for model in models))


def ensemble_variables(of_models: Sequence[Any]) -> Any:
    """The ensemble's variables, from those of its models in order."""
    collections: dict[str, Any] = {}
    for number, variables in enumerate(of_models):
        for name, tree in variables.items():
            collections.setdefault(name, {})[f'models_{number}'] = tree
    return collections

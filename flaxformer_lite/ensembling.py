"""Ensembles of models that share a vocabulary."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.kv_cache import BeamState
from flaxformer_lite.models.base import DecodeState, Model, Tokens
from flaxformer_lite.special_tokens import SpecialTokens


@dataclasses.dataclass(frozen=True, eq=False)
class Ensemble:
    """Trained models of one vocabulary, whose probabilities are averaged.

    The logits are log p(y_t | y_<t, x), with p = 1/M Σ_m p_m. It has a `model` and its
    `variables`, for the functions that take a model and its variables:

        ensemble = fl.Ensemble([(model, variables), (other, other_variables)])
        result = fl.generate(ensemble.model, ensemble.variables, sources)
        scores = fl.log_probs(ensemble.model, ensemble.variables, batch)

    Attributes:
      members: (model, variables) of each. Models of any architecture, and the same
        model with several variables, such as those of other seeds.

    Raises:
      ValueError: The list is empty, or the vocabularies differ.

    Examples:
      >>> import flaxformer_lite as fl
      >>> model = fl.config.build({'num_layers': 1}, vocab_size=10)
      >>> token = jnp.ones((1, 1), jnp.int32)
      >>> variables = jax.eval_shape(model.init, jax.random.key(0), token, token)

      >>> ensemble = fl.Ensemble([(model, variables), (model, variables)])
      >>> jax.eval_shape(ensemble.model.apply, ensemble.variables, token, token).shape
      (1, 1, 10)
    """

    members: Sequence[tuple[Model, Any]]

    def __post_init__(self):
        if not self.members:
            raise ValueError(
                'members: an ensemble needs at least one model. Pass a list of '
                '(model, variables).'
            )
        for name in ('vocab_size', 'source_vocab_size', 'special_tokens'):
            first, *others = [getattr(model, name) for model, _ in self.members]
            for other in others:
                if other != first:
                    raise ValueError(
                        f'members: their {name} differ, {first} and {other}. An '
                        'ensemble needs models of one vocabulary.'
                    )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Explains that an ensemble isn't a model, where a model is expected."""
            if not name.startswith('_') and hasattr(Model, name):
                raise ValueError(
                    'model: an Ensemble is not a model. Pass ensemble.model and '
                    'ensemble.variables to generate or log_probs, or one of its models.'
                )
            raise AttributeError(f'Ensemble has no attribute {name!r}')

    @property
    def model(self) -> 'EnsembleModel':
        """The model, whose `apply` takes `variables`. Equal members give equal ones."""
        return EnsembleModel(
            tuple(model.copy(parent=None, name=None) for model, _ in self.members)
        )

    @property
    def variables(self) -> Any:
        """{'params': …} of all models."""
        collections: dict[str, Any] = {}
        for number, (_, variables) in enumerate(self.members):
            for name, tree in variables.items():
                collections.setdefault(name, {})[f'models_{number}'] = tree
        return collections


class EnsembleState(NamedTuple):
    states: tuple[DecodeState, ...]

    def allocate(self, hypotheses: int, tokens: int) -> 'EnsembleState':
        return EnsembleState(
            tuple(state.allocate(hypotheses, tokens) for state in self.states)
        )


class EnsembleModel(nn.Module):
    """The model of an `Ensemble`, which averages the probabilities of its models.

    Attributes:
      models: Each must be a separate object.
    """

    models: Sequence[Model]

    @property
    def special_tokens(self) -> SpecialTokens:
        return self.models[0].special_tokens

    @property
    def vocab_size(self) -> int:
        return self.models[0].vocab_size

    @property
    def source_vocab_size(self) -> int | None:
        return self.models[0].source_vocab_size

    @property
    def max_length(self) -> int | None:
        limits = [model.max_length for model in self.models]
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def _needs_one_model(self) -> Any:
        raise ValueError(
            'model: ensembles support only __call__, generate and log_probs. Pass one '
            'of its models.'
        )

    # Attributes that training and introspection read from a model.
    logit_factors = factors_of_heads = _needs_one_model
    scans_layers = stacks = with_remat = _needs_one_model

    @nn.nowrap
    def members(self, variables: Any) -> list[tuple[Model, Any]]:
        """Returns each model with its variables, given those of the ensemble."""
        return [
            (
                model.copy(parent=None, name=None),
                {
                    name: tree[f'models_{number}']
                    for name, tree in variables.items()
                    if f'models_{number}' in tree
                },
            )
            for number, model in enumerate(self.models)
        ]

    def __call__(self, source: Tokens, inputs: Tokens) -> jax.Array:
        """Returns the log of the mean probability with teacher forcing, BTV."""
        return log_mean([model(source, inputs) for model in self.models])

    def prefill(self, source_BS: jax.Array) -> EnsembleState:
        return EnsembleState(tuple(model.prefill(source_BS) for model in self.models))

    def decode_step(
        self, token_BN: jax.Array, state: EnsembleState, beam: BeamState
    ) -> tuple[jax.Array, EnsembleState]:
        """Returns the log of the mean probability, BNV, and the new state."""
        logits_MBNV = []
        states = []
        for model, model_state in zip(self.models, state.states, strict=True):
            logits_BNV, model_state = model.decode_step(token_BN, model_state, beam)
            logits_MBNV.append(logits_BNV)
            states.append(model_state)
        return log_mean(logits_MBNV), EnsembleState(tuple(states))


def log_mean(logits_MBTV: Sequence[jax.Array]) -> jax.Array:
    """Returns the log of the mean of the models' probabilities.

    Examples:
      >>> import numpy as np
      >>> logits_MBTV = jnp.log(jnp.array([[[[0.2, 0.8]]], [[[0.6, 0.4]]]]))
      >>> print(np.round(np.exp(log_mean(list(logits_MBTV))), 2))
      [[[0.4 0.6]]]
    """
    log_p_MBTV = jnp.stack([jax.nn.log_softmax(x_BTV) for x_BTV in logits_MBTV])
    return jax.nn.logsumexp(log_p_MBTV, axis=0) - jnp.log(len(logits_MBTV))

"""Decoding of a config."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from experiments import registries
from experiments.config.schema import EvaluationConfig
from experiments.errors import user_errors
from flaxformer_lite.decoding.processors.base import Processor
from flaxformer_lite.decoding.strategies.base import Strategy
from flaxformer_lite.generation import as_processors

if TYPE_CHECKING:
    from flaxformer_lite.ensembling import Ensemble
    from flaxformer_lite.models.base import Model


class Decoding(NamedTuple):
    """Strategy, processors and sizes of decoding."""

    strategy: Strategy
    processors: tuple[Processor, ...]
    extra_length: int
    batch_tokens: int


def make(evaluation: EvaluationConfig) -> Decoding:
    """Builds the components of decoding."""
    with user_errors('evaluation.processors: '):
        processors = as_processors(evaluation.processors)
    return Decoding(
        registries.make('evaluation.decode', evaluation.decode),
        processors,
        evaluation.extra_length,
        evaluation.batch_tokens,
    )


def check_processors(
    processors: Sequence[Processor], model: 'Model | Ensemble', extra_length: int
) -> None:
    """Raises UserError if processors don't fit the vocabulary or length of targets."""
    limit = 1 + extra_length  # for a source of one token
    if model.max_length is not None:
        limit = min(limit, model.max_length)
    with user_errors('evaluation.processors: '):
        for processor in processors:
            processor.check(model.vocab_size, model.special_tokens, limit)

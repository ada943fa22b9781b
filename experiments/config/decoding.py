"""Decoding options of a config."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments import registries
from experiments.config.schema import EvaluationConfig
from experiments.errors import user_errors
from flaxformer_lite.decoding.processors.base import Processor
from flaxformer_lite.generation import DecodingOptions, as_processors

if TYPE_CHECKING:
    from flaxformer_lite.ensembling import EnsembleModel
    from flaxformer_lite.models.base import Model


def decoding_options(evaluation: EvaluationConfig) -> DecodingOptions:
    """Builds the components of decoding."""
    with user_errors('evaluation.processors: '):
        processors = as_processors(evaluation.processors)
    strategy = registries.make('evaluation.decode', evaluation.decode)
    return DecodingOptions(strategy, processors, evaluation.extra_length)


def check_processors(
    processors: Sequence[Processor], model: 'Model | EnsembleModel', extra_length: int
) -> None:
    """Raises UserError if processors don't fit the vocabulary or length of targets."""
    limit = 1 + extra_length  # for a source of one token
    if model.max_length is not None:
        limit = min(limit, model.max_length)
    with user_errors('evaluation.processors: '):
        for processor in processors:
            processor.check(model.vocab_size, model.special_tokens, limit)

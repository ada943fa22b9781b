"""Decoding strategy and logit processors of a config."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.config.schema import EvaluationConfig
from experiments.errors import user_errors
from experiments.registries import METRICS
from flaxformer_lite.decoding.processors.base import Processor
from flaxformer_lite.decoding.strategies.base import Strategy
from flaxformer_lite.decoding.strategies.mbr import MBRDecoding
from flaxformer_lite.generation import as_processors, as_strategy, forced_prefix

if TYPE_CHECKING:  # few strategies use one
    from experiments.metrics.base import Metric
    from flaxformer_lite.ensembling import Ensemble
    from flaxformer_lite.models.base import Model

_UTILITY = 'chrf'  # the default of `mbr`


class SearchOptions(NamedTuple):
    strategy: Strategy
    processors: tuple[Processor, ...]


class SamplingOptions(NamedTuple):
    """Options for decoding a sentence several times, each with its own key.

    Attributes:
      strategy: The strategy of each time.
      samples: The number of times.
      utility: The metric that ranks the samples; None ranks them by score.
    """

    strategy: Strategy
    samples: int
    utility: 'Metric | None' = None


def make(
    evaluation: EvaluationConfig, forced_first: int | None = None
) -> SearchOptions:
    """Makes the objects that `evaluation.decode` and `evaluation.processors` name.

    Args:
      evaluation: The config section.
      forced_first: Forced first token of each target; None forces none.

    Raises:
      UserError: A component is unknown, or an argument is invalid.
    """
    with user_errors('evaluation.decode: '):
        strategy = as_strategy(evaluation.decode)
    sampling(strategy)
    with user_errors('evaluation.processors: '):
        processors = as_processors(evaluation.processors)
    return SearchOptions(strategy, (*forced_prefix(forced_first), *processors))


def check_processors(
    processors: Sequence[Processor], model: 'Model | Ensemble', extra_length: int
) -> None:
    """Checks that processors fit the vocabulary and the length of targets.

    Raises:
      UserError: Names the processor's argument.
    """
    limit = 1 + extra_length  # for a source of one token
    if model.max_length is not None:
        limit = min(limit, model.max_length)
    with user_errors('evaluation.processors: '):
        for processor in processors:
            processor.check(model.vocab_size, model.special_tokens, limit)


def sampling(strategy: Strategy, n_best: int = 1) -> SamplingOptions:
    """Returns how a strategy decodes a sentence.

    Args:
      strategy: The strategy.
      n_best: Number of samples, unless the strategy sets it.

    Raises:
      UserError: The utility is unknown, or an argument of it is invalid.
    """
    if not isinstance(strategy, MBRDecoding):
        return SamplingOptions(strategy, n_best if strategy.draws else 1)
    with user_errors('evaluation.decode: utility: '):
        # Configs are text, so it is never a function.
        spec: Any = strategy.utility or _UTILITY
        utility = METRICS.make(spec, name='utility')
    return SamplingOptions(strategy.sampler, strategy.samples, utility)

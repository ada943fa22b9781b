"""Decoding of a config."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.config.schema import EvaluationConfig
from experiments.errors import UserError, user_errors
from experiments.metrics.external import External
from experiments.registries import METRICS
from flaxformer_lite.decoding.processors.base import Processor
from flaxformer_lite.decoding.strategies.base import Strategy
from flaxformer_lite.decoding.strategies.mbr import MBRDecoding
from flaxformer_lite.generation import as_processors, as_strategy

if TYPE_CHECKING:  # few strategies use one
    from experiments.metrics.base import Metric
    from flaxformer_lite.ensembling import Ensemble
    from flaxformer_lite.models.base import Model

_UTILITY = 'chrf'  # the default of `mbr`


class Decoding(NamedTuple):
    """Strategy, processors and sizes of decoding.

    Attributes:
      strategy: The search; for `mbr`, its sampler.
      samples: Number of samples per sentence. Set by `mbr` only.
      utility: The metric by which `mbr` ranks the samples.
    """

    strategy: Strategy
    processors: tuple[Processor, ...]
    extra_length: int
    batch_tokens: int
    samples: int | None = None
    utility: 'Metric | None' = None

    def count_samples(self, n_best: int) -> int:
        """Returns how often a sentence is decoded, each time with its own key."""
        return self.samples or (n_best if self.strategy.draws else 1)


def make(evaluation: EvaluationConfig) -> Decoding:
    """Builds the components of decoding."""
    with user_errors('evaluation.decode: '):
        strategy = as_strategy(evaluation.decode)
    with user_errors('evaluation.processors: '):
        processors = as_processors(evaluation.processors)
    samples = utility = None
    if isinstance(strategy, MBRDecoding):
        with user_errors('evaluation.decode: utility: '):
            # Configs are text, so it is never a function.
            spec: Any = strategy.utility or _UTILITY
            utility = METRICS.make(spec, name='utility')
        if isinstance(utility, External):
            raise UserError(
                'evaluation.decode: utility: external would start its command for each '
                'sentence. Choose another metric.'
            )
        strategy, samples = strategy.sampler, strategy.samples
    return Decoding(
        strategy,
        processors,
        evaluation.extra_length,
        evaluation.batch_tokens,
        samples,
        utility,
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

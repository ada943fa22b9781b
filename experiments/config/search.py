"""How a config says to decode, as objects of the library."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from experiments.config.schema import EvaluationConfig
from experiments.errors import user_errors
from experiments.kinds import METRICS
from flaxformer_lite.decoding.processors.base import Processor
from flaxformer_lite.decoding.strategies.base import Strategy
from flaxformer_lite.generation import as_processors, as_strategy, forced_prefix

if TYPE_CHECKING:  # few searches take one
    from experiments.metrics.base import Metric
    from flaxformer_lite.ensembling import Ensemble
    from flaxformer_lite.models.base import Model


class Search(NamedTuple):
    strategy: Strategy
    processors: tuple[Processor, ...]


def make(evaluation: EvaluationConfig, forced_first: int | None = None) -> Search:
    """What `evaluation.decode` and `evaluation.processors` name.

    Args:
      forced_first: the token that each target begins with; None for any.

    Raises:
      UserError: one of them names what is not there, or has a wrong argument.
    """
    with user_errors('evaluation.decode: '):
        strategy = as_strategy(evaluation.decode)
    utility(strategy)
    with user_errors('evaluation.processors: '):
        processors = as_processors(evaluation.processors)
    return Search(strategy, (*forced_prefix(forced_first), *processors))


def check_processors(
    processors: Sequence[Processor], model: 'Model | Ensemble', extra_length: int
) -> None:
    """Refuses processors that don't fit the vocabulary or the length of targets.

    Raises:
      UserError: names the processor's argument.
    """
    limit = 1 + extra_length  # of a source of one token
    if model.max_length is not None:
        limit = min(limit, model.max_length)
    with user_errors('evaluation.processors: '):
        for processor in processors:
            processor.check(model.vocab_size, model.special_tokens, limit)


def utility(strategy: Strategy) -> 'Metric | None':
    """The metric by which a strategy orders samples; None for their scores.

    Raises:
      UserError: there is no such metric, or it has a wrong argument.
    """
    if not strategy.utility_spec:
        return None
    with user_errors('evaluation.decode: utility: '):
        return METRICS.make(strategy.utility_spec, name='utility')

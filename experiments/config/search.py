"""How a config says to decode, as objects of the library."""

import dataclasses
from typing import NamedTuple

from experiments.config.schema import EvaluationConfig
from experiments.errors import user_errors
from flaxformer_lite.decoding.processors.base import Processor
from flaxformer_lite.decoding.strategies.base import Strategy
from flaxformer_lite.generation import as_processors, as_strategy

HELP = "in place of the config’s evaluation.decode: 'beam(beams=8)'"


class Search(NamedTuple):
    strategy: Strategy
    processors: tuple[Processor, ...]


def with_decode(evaluation: EvaluationConfig, decode: str) -> EvaluationConfig:
    """The section with what a flag says, if it says something."""
    return dataclasses.replace(evaluation, decode=decode or evaluation.decode)


def make(evaluation: EvaluationConfig) -> Search:
    """What `evaluation.decode` and `evaluation.processors` name.

    Raises:
      UserError: one of them names what is not there, or has a wrong argument.
    """
    with user_errors('evaluation.decode: '):
        strategy = as_strategy(evaluation.decode)
    with user_errors('evaluation.processors: '):
        return Search(strategy, as_processors(evaluation.processors))

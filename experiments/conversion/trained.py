"""What is exported: a run's model with the parameters that it is scored with."""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.config.schema import ExperimentConfig
from experiments.data.tokenizer import Tokenizer
from experiments.runs import trained_run
from flaxformer_lite.models.base import Model


class Trained(NamedTuple):
    """A run's model.

    Attributes:
      config: the run's.
      tokenizer: of both languages.
      model: the Transformer.
      variables: the mean of the checkpoints that the run is scored with.
    """

    config: ExperimentConfig
    tokenizer: Tokenizer
    model: Model
    variables: Any


def read_trained(workdir: Path) -> Trained:
    """The trained model of a run's directory.

    Raises:
      UserError: as `trained_run.open_trained` and `trained_run.average`.
    """
    run = trained_run.open_trained(workdir)
    mean = trained_run.average(run.config, run.checkpoints, run.model)
    return Trained(run.config, run.tokenizer, run.model, mean.variables)


def draw_tokens(trained: Trained, shape: tuple[int, int]) -> np.ndarray:
    """Rows of drawn tokens that are text, for two programs to be compared on."""
    rows, length = shape
    if trained.model.max_length is not None:
        length = min(length, trained.model.max_length - 1)
    vocab_size = trained.model.vocab_size
    lowest = max(dataclasses.astuple(trained.model.special_tokens)) + 1
    lowest = min(lowest, vocab_size - 1)
    draw = np.random.default_rng(length).integers
    return draw(lowest, vocab_size, (rows, length), np.int32)

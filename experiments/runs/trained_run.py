"""What a run's directory holds, made into a model again."""

import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from experiments.checkpoints.averaging import Mean
from experiments.checkpoints.checkpoints import Checkpoints
from experiments.command_line.errors import UserError
from experiments.config import check, typed
from experiments.config.schema import ExperimentConfig
from experiments.data import tokenizer
from experiments.data.tokenizer import Tokenizer
from experiments.runs import directory
from experiments.runtime import devices
from experiments.storage import hold
from experiments.training import early_stopping
from flaxformer_lite.models.base import Model
from flaxformer_lite.training.train_step import init_variables

TOKENIZER = 'tokenizer.model'
CHECKPOINTS = 'checkpoints'
_ATTEMPTS = 20  # to read checkpoints that a run removes; one nearly always does


class Trained(NamedTuple):
    config: ExperimentConfig
    tokenizer: Tokenizer
    model: Model
    checkpoints: Checkpoints


def open_trained(path: Path) -> Trained:
    """The run in a directory, to read; it may still be training.

    Raises:
      UserError: this is not a run's directory, it has no finished checkpoint yet, it is another
        version's, or its model cannot be built here.
    """
    config = _config(path)
    checkpoints = Checkpoints(path / CHECKPOINTS, read_only=True)
    if not checkpoints.steps():
        raise UserError(
            f'{path} holds no finished checkpoint yet: let its run train on'
        )
    model_tokenizer = tokenizer.load(path / TOKENIZER)
    try:
        model = check.build_model(config, model_tokenizer.vocab_size)
        abstract_variables(model)
    except (UserError, ValueError) as error:
        raise UserError(f'{path}: {error}') from None
    return Trained(config, model_tokenizer, model, checkpoints)


def _config(path: Path) -> ExperimentConfig:
    """The run's config, checked as that of a run that begins."""
    stored = directory.read_config(path)
    try:
        config = typed.from_dict(stored)
        check.check(config)
    except UserError as error:
        raise UserError(f'{path / directory.CONFIG}: {error}') from None
    return config


def average(
    config: ExperimentConfig,
    checkpoints: Checkpoints,
    model: Model,
    warn: Callable[[str], None] | None = None,
) -> Mean:
    """The mean of the checkpoints that are to be scored; the run may still be training.

    Args:
      warn: is told of each damaged checkpoint, which is left out; without it, stderr is.

    Raises:
      UserError: none is good, or they cannot be read.
    """
    abstract = abstract_variables(model)
    for _ in range(_ATTEMPTS):
        steps = list(average_steps(config, checkpoints))
        if early_stopping.takes_best(config):
            # They may be among the best: left out, but not in silence.
            steps += checkpoints.unknown_steps()
        try:
            return checkpoints.average(steps, abstract, warn or _to_stderr)
        except hold.Gone:
            continue  # a newer one is there
    raise UserError(
        'the run removes its checkpoints sooner than they can be read: let it end, or begin one '
        'with a larger checkpoint.every'
    )


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr)


def average_steps(config: ExperimentConfig, checkpoints: Checkpoints) -> Sequence[int]:
    """The checkpoints whose mean is to be scored: the last or the best, as the config says.

    Where training stops early the best are meant, whatever `evaluation.average_of` says.
    """
    number = config.evaluation.average
    if early_stopping.takes_best(config):
        # Without a score there is no best one; the last then stands for it.
        return checkpoints.best_steps(number) or checkpoints.last_steps(1)
    return checkpoints.last_steps(number)


@functools.cache  # a trace of the whole model, which a run asks for again and again
def abstract_variables(model: Model) -> Any:
    """Shapes and dtypes of the model's parameters and statistics, placed on every device."""
    return devices.placed(
        jax.eval_shape(lambda: init_variables(model, jax.random.key(0)))
    )

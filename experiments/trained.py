"""What a run's directory holds, made into a model again."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from experiments import devices, tokenizer, workdir
from experiments.checkpoint import Checkpoints
from experiments.errors import UserError
from experiments.tokenizer import Tokenizer
from flaxformer_lite import build, training
from flaxformer_lite.architectures.base import Model

TOKENIZER = 'tokenizer.model'
CHECKPOINTS = 'checkpoints'


class Trained(NamedTuple):
    config: ConfigDict
    tokenizer: Tokenizer
    model: Model
    checkpoints: Checkpoints


def open_trained(path: Path) -> Trained:
    """The run in a directory, to read; it may still be training.

    Raises:
      UserError: this is not a run's directory, it has no finished checkpoint yet, it is another
        version's, or its model cannot be built here.
    """
    config = ConfigDict(workdir.read_config(path))
    checkpoints = Checkpoints(path / CHECKPOINTS, read_only=True)
    if not checkpoints.steps():
        raise UserError(
            f'{path} holds no finished checkpoint yet: let its run train on'
        )
    model_tokenizer = tokenizer.load(path / TOKENIZER)
    try:
        model = build.model(config.model, model_tokenizer.vocab_size)
        abstract_variables(model)
    except ValueError as error:
        raise UserError(f'{path}: {error}') from None
    except (
        AttributeError,
        KeyError,
    ) as error:  # a field that the other version did not have
        raise UserError(
            f'{path} was trained by another version of this code, whose config is not as ours: '
            f'{error}; check out the commit of its environment.json'
        ) from None
    return Trained(config, model_tokenizer, model, checkpoints)


def average_steps(config: ConfigDict, checkpoints: Checkpoints) -> Sequence[int]:
    """The checkpoints whose mean is to be scored: the last or the best, as the config says."""
    number = config.evaluation.average
    if config.evaluation.average_of == 'best':
        # Without a score there is no best one; the last then stands for it.
        return checkpoints.best_steps(number) or checkpoints.last_steps(1)
    return checkpoints.last_steps(number)


@functools.cache  # a trace of the whole model, which a run asks for again and again
def abstract_variables(model: Model) -> Any:
    """Shapes and dtypes of the model's parameters and statistics, placed on every device."""
    return devices.placed(
        jax.eval_shape(lambda: training.init_variables(model, jax.random.key(0)))
    )

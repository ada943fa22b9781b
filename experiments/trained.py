"""What a run's directory holds, made into a model again."""

import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from experiments import check, devices, early_stopping, hold, tokenizer, workdir
from experiments.averaging import Mean
from experiments.checkpoint import Checkpoints
from experiments.errors import UserError
from experiments.tokenizer import Tokenizer
from flaxformer_lite import build, training
from flaxformer_lite.architectures.base import Model

TOKENIZER = 'tokenizer.model'
CHECKPOINTS = 'checkpoints'
_ATTEMPTS = 20  # to read checkpoints that a run removes; one nearly always does


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
    config = _config(path)
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
    except (AttributeError, KeyError, TypeError) as error:
        raise _of_another_version(path, error) from None
    return Trained(config, model_tokenizer, model, checkpoints)


def _config(path: Path) -> ConfigDict:
    """The run's config, checked as that of a run that begins."""
    stored = workdir.completed_config(path)
    try:
        config = ConfigDict(stored)
        lacks = check.missing(config)
        if lacks:
            raise KeyError(f'it has no field {lacks[0]}')
        check.check(config)
        if not isinstance(config.data, str):
            raise TypeError(f'data is {config.data!r}')
    except UserError as error:
        raise UserError(f'{path / workdir.CONFIG}: {error}') from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        # A field that the other version did not have, or a value of another type.
        raise _of_another_version(path, error) from None
    return config


def _of_another_version(path: Path, error: Exception) -> UserError:
    return UserError(
        f'{path} was trained by another version of this code, whose config is not as ours: '
        f'{error}; check out the commit of its environment.json'
    )


def average(
    config: ConfigDict,
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


def average_steps(config: ConfigDict, checkpoints: Checkpoints) -> Sequence[int]:
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
        jax.eval_shape(lambda: training.init_variables(model, jax.random.key(0)))
    )

"""A trained run, opened from its directory: its config, tokenizer, model, checkpoints.

The commands that read a run, and the end of training, share what is here.
"""

import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from experiments.checkpoints.checkpoints import Checkpoints, Gone, Mean
from experiments.config import check, load
from experiments.config.schema import ExperimentConfig, takes_best
from experiments.data import published, tokenizer
from experiments.data.tokenizer import Tokenizer
from experiments.errors import UserError, warn
from experiments.runs import directory, metrics_log
from experiments.runtime import mesh, processes
from experiments.runtime.mesh import DeviceMesh
from flaxformer_lite.models.base import Model
from flaxformer_lite.training.train_step import init_variables

TOKENIZER = 'tokenizer.model'
CHECKPOINTS = 'checkpoints'
# How often to try to read checkpoints that the run removes; one try is nearly always
# enough.
_ATTEMPTS = 20


class TrainedRun(NamedTuple):
    """What a run's directory holds."""

    config: ExperimentConfig
    tokenizer: Tokenizer
    model: Model
    checkpoints: Checkpoints


def open_trained(path: Path) -> TrainedRun:
    """Opens the run in a directory to read it; the run may still be training.

    Raises:
      UserError: this is not a run's directory, it has no finished checkpoint yet, it is
        of another version, or its model cannot be built here.
    """
    config = _config(path)
    scores = metrics_log.dev_scores(path) if takes_best(config) else {}
    checkpoints = Checkpoints(path / CHECKPOINTS, scores=scores)
    if not checkpoints.steps():
        raise UserError(
            f'{path} holds no finished checkpoint yet: let its run train on'
        )
    vocabulary = open_tokenizer(path, config)
    try:
        model = check.build_model(
            config, vocabulary.vocab_size, vocabulary.special_tokens
        )
        abstract_variables(model)
    except (UserError, ValueError) as error:
        raise UserError(f'{path}: {error}') from None
    return TrainedRun(config, vocabulary, model, checkpoints)


def open_tokenizer(path: Path, config: ExperimentConfig) -> Tokenizer:
    """The tokenizer of the run in a directory.

    Raises:
      UserError: it is not there or damaged.
    """
    if config.tokenizer.kind == 'published':
        return published.load_saved(path / TOKENIZER)
    return tokenizer.load(path / TOKENIZER)


def _config(path: Path) -> ExperimentConfig:
    """The run's config, checked as the config of a new run is."""
    stored = directory.read_config(path)
    try:
        config = load.from_dict(stored)
        check.check_config(config)
    except UserError as error:
        raise UserError(f'{path / directory.CONFIG}: {error}') from None
    return config


def average(
    config: ExperimentConfig,
    checkpoints: Checkpoints,
    model: Model,
    warn: Callable[[str], None] = warn,
    devices: DeviceMesh | None = None,
) -> Mean:
    """The mean of the checkpoints that are to be scored; the run may still be training.

    Args:
      warn: is told of each damaged checkpoint, which is left out.
      devices: where the parameters go; by default whole on all that there are.

    Raises:
      UserError: none is good, or they cannot be read.
    """
    abstract = abstract_variables(model, devices)
    for _ in range(_ATTEMPTS):
        try:
            steps = average_steps(config, checkpoints)
            return checkpoints.average(steps, abstract, warn)
        except Gone:
            checkpoints.scores = metrics_log.dev_scores(checkpoints.directory.parent)
    raise UserError(
        'the run removes its checkpoints sooner than they can be read: let it end, or '
        'begin one with a larger checkpoint.every'
    )


def average_steps(config: ExperimentConfig, checkpoints: Checkpoints) -> Sequence[int]:
    """The steps whose checkpoints are averaged: the last or the best, by the config."""
    number = config.evaluation.average

    def steps() -> list[int]:
        if takes_best(config):
            # Where none has a score yet, the last stands for the best.
            return checkpoints.best_steps(number) or checkpoints.last_steps(1)
        return checkpoints.last_steps(number)

    # A shared disk may show other processes a list that is out of date.
    return processes.from_first(steps)


@functools.lru_cache(maxsize=4)
def first_variables(model: Model) -> Any:
    """`init_variables` of a model, jitted: (key, given) → variables.

    To trace it takes a while, and a run needs its trace in several places.
    """
    return jax.jit(functools.partial(init_variables, model))


@functools.lru_cache(maxsize=16)
def abstract_variables(model: Model, devices: DeviceMesh | None = None) -> Any:
    """Shapes and dtypes of the model's variables, placed on the devices.

    Args:
      devices: by default all that there are, each of which has all variables.
    """
    devices = devices or mesh.of()
    key = jax.eval_shape(jax.random.key, 0)
    abstract = first_variables(model).eval_shape(key, {})
    return mesh.placed(abstract, devices.state(abstract))


def sha256(params: Any) -> str:
    """SHA-256 of the leaves' bytes, the leaves in the order of their paths.

    The bytes are little-endian and in C order.
    """
    digest = hashlib.sha256()
    leaves = jax.tree_util.tree_leaves_with_path(params)
    for _, leaf in sorted(leaves, key=lambda entry: jax.tree_util.keystr(entry[0])):
        array = mesh.fetch(leaf)
        little_endian = array.astype(array.dtype.newbyteorder('<'))
        digest.update(little_endian.tobytes())
    return digest.hexdigest()

"""A trained run, opened from its directory: its config, tokenizer, model, checkpoints.

The commands that read a run, and the end of training, share what is here.
"""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.checkpoints.checkpoints import Checkpoints, Gone, Mean
from experiments.checkpoints.digest import leaves_by_path
from experiments.config import check, load, parts, search
from experiments.config.schema import ExperimentConfig, takes_best
from experiments.data import tokenizers
from experiments.data.tokenizers.base import Tokenizer
from experiments.errors import UserError, named, user_errors, warn
from experiments.runs import directory
from experiments.runtime import mesh, processes
from experiments.runtime.mesh import DeviceMesh
from flaxformer_lite.config import build
from flaxformer_lite.models.base import Model

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


def open_trained(path: Path, trust_code: bool = False) -> TrainedRun:
    """Opens the run in a directory to read it; the run may still be training.

    Args:
      trust_code: whether code in the run's directory may be run, as `parts.use` says.

    Raises:
      UserError: this is not a run's directory, it has no finished checkpoint yet, it is
        of another version, its model cannot be built here, or it needs code of its
        directory that is not trusted.
    """
    config = _config(path, trust_code)
    checkpoints = Checkpoints(path / CHECKPOINTS, scores=_dev_scores(path, config))
    if not checkpoints.steps():
        raise UserError(
            f'{path} holds no finished checkpoint yet: let its run train on'
        )
    vocabulary = open_tokenizer(path, config)
    with named(path), user_errors():
        model = build.model(
            config.model, vocabulary.vocab_size, vocabulary.special_tokens
        )
        model = model.clone(source_vocab_size=vocabulary.source_vocab_size)
        check.check_backend(config)
        mesh.abstract_variables(model)
    return TrainedRun(config, vocabulary, model, checkpoints)


def open_tokenizer(path: Path, config: ExperimentConfig) -> Tokenizer:
    """The tokenizer of the run in a directory.

    Raises:
      UserError: it is not there or damaged.
    """
    return tokenizers.open_saved(config.tokenizer, path / TOKENIZER)


def _config(path: Path, trust_code: bool) -> ExperimentConfig:
    """The run's config, each field of which can be."""
    stored = directory.read_config(path)
    parts.use(path, trust_code=trust_code)
    with named(path / directory.CONFIG):
        config = load.from_dict(stored)
        search.make(config.evaluation)
    return config


def average(
    config: ExperimentConfig,
    checkpoints: Checkpoints,
    model: Model,
    warn: Callable[[str], None] = warn,
    devices: DeviceMesh | None = None,
    step: int | None = None,
) -> Mean:
    """The mean of the checkpoints that are to be scored; the run may still be training.

    Args:
      warn: is told of each damaged checkpoint, which is left out.
      devices: where the parameters go; by default whole on all that there are.
      step: selects one checkpoint instead.

    Raises:
      UserError: none is good, they cannot be read, or the run keeps none of `step`.
    """
    abstract = mesh.abstract_variables(model, devices)
    for _ in range(_ATTEMPTS):
        try:
            if step is None:
                steps = average_steps(config, checkpoints)
            else:
                check_step(checkpoints, step)
                steps = [step]
            return checkpoints.average(steps, abstract, warn)
        except Gone:
            checkpoints.scores = _dev_scores(checkpoints.directory.parent, config)
    raise UserError(
        'the run removes its checkpoints sooner than they can be read: let it end, or '
        'begin one with a larger checkpoint.every'
    )


def check_step(checkpoints: Checkpoints, step: int) -> None:
    """Raises UserError if the run keeps no checkpoint of a step."""
    kept = checkpoints.steps()
    if step not in kept:
        raise UserError(
            f'step: {checkpoints.directory} has no checkpoint of step {step}. Choose '
            f'one of {", ".join(map(str, kept))}.'
        )


def _dev_scores(path: Path, config: ExperimentConfig) -> dict[int, float]:
    """What says which checkpoints are best, where the best ones are scored."""
    if not takes_best(config):
        return {}
    from experiments.runs import metrics_log, reading  # which the last ones do not take

    saved = Checkpoints(path / CHECKPOINTS)
    for step in saved.steps()[-1:]:
        seal = saved.metadata(step).get('rows')
        if seal and metrics_log.is_changed(path, step, seal):
            warn(reading.changed_file(path / metrics_log.NAME))
    return metrics_log.dev_scores(path, metrics_log.deciding_metric(config))


def average_steps(config: ExperimentConfig, checkpoints: Checkpoints) -> Sequence[int]:
    """The steps whose checkpoints are averaged: the last or the best, by the config."""
    number = config.evaluation.average

    def steps():
        if takes_best(config):
            # Where none has a score yet, the last stands for the best.
            return checkpoints.best_steps(number) or checkpoints.last_steps(1)
        return checkpoints.last_steps(number)

    # A shared disk may show other processes a list that is out of date.
    return processes.from_first(steps)


def sha256(params: Any) -> str:
    """SHA-256 of the leaves' bytes, the leaves in the order of their paths.

    The bytes are little-endian and in C order.
    """
    content = hashlib.sha256()
    for _, leaf in sorted(leaves_by_path(params).items()):
        array = mesh.fetch(leaf)
        little_endian = array.astype(array.dtype.newbyteorder('<'))
        content.update(little_endian.tobytes())
    return content.hexdigest()

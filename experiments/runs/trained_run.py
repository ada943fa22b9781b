"""The tokenizer and the parameters of a run, from its directory."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.checkpoints import base
from experiments.checkpoints.checkpoints import Checkpoints, Mean, RemovedCheckpoint
from experiments.checkpoints.digest import leaves_by_path
from experiments.config.schema import ExperimentConfig, takes_best
from experiments.data import tokenizers
from experiments.data.tokenizers.base import Tokenizer
from experiments.errors import UserError, warn
from experiments.runtime import mesh, processes
from experiments.runtime.mesh import DeviceMesh
from flaxformer_lite import adapters
from flaxformer_lite.config.spec import Spec
from flaxformer_lite.models.base import Model
from flaxformer_lite.training import freezing

TOKENIZER = 'tokenizer.model'
CHECKPOINTS = 'checkpoints'
# A running run may remove checkpoints while they are read. One try is nearly always
# enough.
_ATTEMPTS = 20


def open_tokenizer(spec: Spec, path: Path) -> Tokenizer:
    """Opens the tokenizer of the run in a directory.

    Raises UserError if it isn't the one of the newest checkpoint. Checkpoints of
    earlier versions don't name theirs.
    """
    file = path / TOKENIZER
    found = tokenizers.open_saved(spec, file)
    checkpoints = Checkpoints(path / CHECKPOINTS)
    for step in checkpoints.steps()[-1:]:
        digest = found.model_digest
        if checkpoints.metadata(step).get('tokenizer', digest) != digest:
            raise UserError(
                f'{file} differs from the tokenizer of step {step}, which decides '
                'what its ids mean. Restore the file from a copy.'
            )
    return found


def average(
    config: ExperimentConfig,
    checkpoints: Checkpoints,
    model: Model,
    warn: Callable[[str], None] = warn,
    devices: DeviceMesh | None = None,
    step: int | None = None,
) -> Mean:
    """Returns the mean of the checkpoints to score; the run may still be training.

    Args:
      warn: Called with a message for each damaged checkpoint, which is left out.
      devices: Where the parameters go. Defaults to replicas on all devices.
      step: Selects one checkpoint.
    """
    abstract = mesh.abstract_variables(model, devices)
    frozen = adapters.frozen_paths(model, abstract['params'])
    own, _ = freezing.split(abstract['params'], frozen)
    for _ in range(_ATTEMPTS):
        try:
            if step is None:
                steps = average_steps(config, checkpoints)
            else:
                check_step(checkpoints, step)
                steps = [step]
            mean = checkpoints.average(steps, abstract | {'params': own}, warn)
            params = mean.variables['params']
            params = base.join(checkpoints, params, abstract['params'], frozen)
            return mean._replace(variables=mean.variables | {'params': params})
        except RemovedCheckpoint:
            checkpoints.scores = dev_scores(checkpoints, config)
    raise UserError(
        'checkpoints were deleted before they could be read. Wait for the run to end, '
        'or train with a larger checkpoint.every.'
    )


def check_step(checkpoints: Checkpoints, step: int) -> None:
    """Raises UserError if a run has no checkpoint of a step."""
    steps = checkpoints.steps()
    if step not in steps:
        raise UserError(
            f'step: {checkpoints.directory} has no checkpoint of step {step}. Choose '
            f'one of {", ".join(map(str, steps))}.'
        )


def dev_scores(checkpoints: Checkpoints, config: ExperimentConfig) -> dict[int, float]:
    """Returns the scores that choose the best checkpoints; empty if nothing does."""
    if not takes_best(config):
        return {}
    from experiments import metrics  # needed for the best ones only
    from experiments.runs import metrics_log

    path = checkpoints.directory.parent
    metrics_by_name = metrics.make(config.evaluation.metrics)
    best = metrics.deciding(metrics_by_name, config.evaluation.best)
    return metrics_log.dev_scores(metrics_log.read_rows(path), best)


def average_steps(config: ExperimentConfig, checkpoints: Checkpoints) -> Sequence[int]:
    number = config.evaluation.average

    def steps():
        if takes_best(config):
            # Without any score yet, use the last checkpoint.
            return checkpoints.best_steps(number) or checkpoints.last_steps(1)
        return checkpoints.last_steps(number)

    # A shared disk may show other processes an outdated list.
    return processes.from_first(steps)


def sha256(params: Any) -> str:
    """Returns the SHA-256 of the leaves' little-endian bytes, ordered by path."""
    content = hashlib.sha256()
    for _, leaf in sorted(leaves_by_path(params).items()):
        array = mesh.fetch(leaf)
        little_endian = array.astype(array.dtype.newbyteorder('<'))
        content.update(little_endian.tobytes())
    return content.hexdigest()

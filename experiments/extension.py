"""A run that goes on further than it was to: its limits are raised, and all else is as it was."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from experiments import job as jobs
from experiments import limits, optimizer, trained, workdir
from experiments.checkpoint import Checkpoints
from experiments.errors import UserError


def check(job: jobs.Job, path: Path, anyway: bool) -> dict[str, Any]:
    """What is kept of the extension: where it goes on, by which limits, and whether it is exact.

    It is exact where the updates so far had the learning rates that a run begun with the new
    limits would have given them; then the result is that run's, bit for bit.

    Args:
      job: of the config with the raised limits.
      path: the run's directory.
      anyway: whether to go on although the rates would have been others.

    Raises:
      UserError: the rates would have been others.
    """
    before = ConfigDict(workdir.completed_config(path))
    old_steps = jobs.length(before, job.batches)
    step = max(
        Checkpoints(path / trained.CHECKPOINTS, read_only=True).steps(), default=0
    )
    _, schedule = optimizer.make(before, old_steps)
    exact = np.array_equal(_rates(schedule, step), _rates(job.schedule, step))
    if not exact and not anyway:
        raise UserError(
            f'optimizer.schedule={before.optimizer.schedule} goes by the number of steps: in a run '
            f'of {job.steps:,} the {step:,} updates so far would have had other learning rates '
            f'than in this one of {old_steps:,}, so its end is not what going on gives. '
            '--extend goes on all the same, another --workdir begins anew'
        )
    old, new = (workdir.flatten(c.to_dict()) for c in (before, job.config))
    if step == old_steps and not _would_have_stopped_there(job.config, step):
        print(
            f'step {step:,} was the last: it is logged, evaluated and saved, which a run begun '
            'with the new limits would not have done there'
        )
    return {'at_step': step, 'limits': limits.raised(old, new), 'exact': exact}


def _rates(schedule: Any, steps: int) -> np.ndarray:
    if not steps:
        return np.zeros(0)
    return np.asarray(jax.jit(jax.vmap(schedule))(jnp.arange(steps)))


def _would_have_stopped_there(config: Any, step: int) -> bool:
    """Whether logging, evaluation and saving are due at a step that is not the last."""
    intervals = (
        config.train.log_every,
        config.evaluation.every,
        config.checkpoint.every,
    )
    return all(every and step % every == 0 for every in intervals)

"""Extending a run: its limits are raised, and all else stays as it was."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.checkpoints.checkpoints import Checkpoints
from experiments.config import load
from experiments.config.schema import ExperimentConfig
from experiments.errors import UserError
from experiments.optimizers import optimizer
from experiments.runs import directory, trained_run
from experiments.training.setup import RunSetup, length


def check(setup: RunSetup, path: Path, anyway: bool) -> dict[str, Any]:
    """What is recorded of the extension: its step, its limits and whether it is exact.

    It is exact where the updates so far had the learning rates that a run begun with
    the new limits would have given them. Then its result is that run's, bit for bit.

    Args:
      setup: of the config with the raised limits.
      path: the run's directory.
      anyway: whether to go on although the rates would have been others.

    Raises:
      UserError: the rates would have been others.
    """
    before = load.from_dict(directory.read_config(path))
    old_steps = length(before, setup.batches)
    checkpoints = Checkpoints(path / trained_run.CHECKPOINTS, read_only=True)
    step = max(checkpoints.steps(), default=0)
    old_schedule = optimizer.make_schedule(before, old_steps)
    exact = np.array_equal(_rates(old_schedule, step), _rates(setup.schedule, step))
    if not exact and not anyway:
        raise UserError(
            f'optimizer.schedule={before.optimizer.schedule} goes by the number of '
            f'steps: in a run of {setup.steps:,} the {step:,} updates so far would '
            f'have had other learning rates than in this one of {old_steps:,}, so its '
            'end is not what going on gives. --extend goes on all the same, another '
            '--workdir begins anew'
        )
    if step == old_steps and not _would_have_stopped_there(setup.config, step):
        print(
            f'step {step:,} was the last: it is logged, evaluated and saved, which a '
            'run begun with the new limits would not have done there'
        )
    limits = directory.raised(before.to_dict(), setup.config.to_dict())
    return {'at_step': step, 'limits': limits, 'exact': exact}


def _rates(schedule: optax.Schedule, steps: int) -> np.ndarray:
    """The learning rates of the first updates."""
    if not steps:
        return np.zeros(0)
    return np.asarray(jax.jit(jax.vmap(schedule))(jnp.arange(steps)))


def _would_have_stopped_there(config: ExperimentConfig, step: int) -> bool:
    """Whether logging, evaluation and saving are due at a step that is not the last."""
    intervals = (
        config.train.log_every,
        config.evaluation.every,
        config.checkpoint.every,
    )
    return all(every and step % every == 0 for every in intervals)

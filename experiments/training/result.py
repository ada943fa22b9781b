"""The result of a run: final scores, and facts about the trained parameters."""

import functools
import math
from pathlib import Path
from typing import Any

import jax

from experiments.checkpoints.averaging import Mean
from experiments.config.schema import ExperimentConfig, takes_best, without_seeds
from experiments.costs.ledger import ledger
from experiments.errors import UserError
from experiments.evaluation import scores
from experiments.optimizers import eval_params
from experiments.runs import directory, trained_run
from experiments.runtime import malloc
from experiments.training.record import RunRecord
from flaxformer_lite.models.base import Model
from flaxformer_lite.training.train_step import TrainState


def finish(record: RunRecord, state: TrainState) -> dict[str, Any]:
    """Scores the chosen sets with the averaged parameters.

    The scores become the last rows of the metrics, of the kind `final`.

    Args:
      record: of a run that has trained to the end.
      state: the final one.

    Returns:
      The run's result, for `result.json`.
    """
    step = int(state.step)
    progress = record.metrics.progress
    variables = eval_params.variables(state)
    mean = _averaged(record, variables, step)
    malloc.keep()  # from here on nothing is trained
    evaluations = record.evaluator.every(mean.variables, record.setup.sets, mean.steps)
    for name, values in evaluations.items():
        record.metrics_log.write(step, 'final', set=name, **values)
    return {
        'status': 'finished',
        'step': step,
        'stopped_early': step < record.setup.steps,
        'parameters': count_parameters(variables['params']),
        'train_seconds': progress.seconds,
        'tokens_per_second': progress.tokens / progress.seconds,
        'peak_memory_bytes': record.peak.bytes(),
        'flops_per_token': _flops_per_token(
            without_seeds(record.config), record.setup.model
        ),
        'parameters_sha256': trained_run.sha256(variables['params']),
        'averaged_steps': mean.steps,
        'left_out_steps': mean.left_out,  # of the mean, for they are damaged
        'extensions': directory.extensions(record.path),
        'evaluations': evaluations,
    }


def _averaged(record: RunRecord, variables: Any, step: int) -> Mean:
    """The mean of the checkpoints to be scored.

    Where that is the last checkpoint alone, its variables are still in memory.
    """
    config = record.config
    steps = list(trained_run.average_steps(config, record.checkpoints))
    if steps == [step] and not takes_best(config):
        return Mean(variables, steps, left_out=[])
    model = record.setup.model
    warn = record.say  # of damaged checkpoints, which are left out
    return trained_run.average(
        config, record.checkpoints, model, warn, record.setup.devices
    )


@functools.lru_cache(maxsize=4)  # the runs of a process may share it
def _flops_per_token(config: ExperimentConfig, model: Model) -> int | None:
    """Of a training step, as the ledger counts them; None where it cannot."""
    try:
        return ledger(config, model)['flops_per_token']['total']
    except (UserError, ValueError):
        return None


def count_parameters(params: Any) -> int:
    """How many numbers a tree of parameters has."""
    total = 0
    for leaf in jax.tree.leaves(params):
        total += math.prod(leaf.shape)
    return total


def summary(path: Path, result: dict[str, Any]) -> str:
    """What a finished run prints: its scores, its speed and where its files are."""
    lines = []
    if result.get('stopped_early'):  # results of earlier versions have no such entry
        best = ', '.join(map(str, result['averaged_steps']))
        lines.append(f'stopped early: the dev score rises no more; best at step {best}')
    lines += [
        f'finished: step {result["step"]:,}, {result["parameters"]:,} parameters, '
        f'{result["train_seconds"]:,.0f} s of training, '
        f'{result["tokens_per_second"]:,.0f} target tokens/s',
        scores.table(result['evaluations']),
        f'files: {path}/ (result.json, metrics.jsonl, checkpoints/, translations/)',
    ]
    return '\n'.join(lines)

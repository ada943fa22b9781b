"""The result of a run: computed fields and a printed summary."""

import functools
import math
from pathlib import Path
from typing import Any

import jax

from experiments.config.schema import ExperimentConfig
from experiments.costs import ledger
from experiments.errors import UserError
from experiments.evaluation import scores
from experiments.runtime import mesh
from flaxformer_lite.models.base import Model


def count_parameters(params: Any) -> int:
    """Returns the number of scalars in a tree of parameters."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


@functools.lru_cache(maxsize=4)  # shared by the runs of a process
def flops_per_token(config: ExperimentConfig, model: Model) -> int | None:
    """Returns the FLOPs per token of a training step, or None if they are unknown.

    Args:
      config: A config without seeds.
      model: The model.
    """
    try:
        variables = mesh.abstract_variables(model)
        return ledger.flops_per_token(config, model, variables)['total']
    except (UserError, ValueError):
        return None


def summary(path: Path, result: dict[str, Any]) -> str:
    """Formats the summary of a finished run: scores, speed and files."""
    lines = []
    if result.get('stopped_early') and result.get('averaged_steps'):
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

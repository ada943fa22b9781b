"""The result of a run: what of it does not follow from its training, and its text."""

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
    """How many numbers a tree of parameters has."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


@functools.lru_cache(maxsize=4)  # the runs of a process may share it
def flops_per_token(config: ExperimentConfig, model: Model) -> int | None:
    """Of a training step, as the ledger counts them; None where it cannot.

    Args:
      config: without its seeds.
    """
    try:
        variables = mesh.abstract_variables(model)
        return ledger.flops_per_token(config, model, variables)['total']
    except (UserError, ValueError):
        return None


def summary(path: Path, result: dict[str, Any]) -> str:
    """What a finished run prints: its scores, its speed and where its files are."""
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

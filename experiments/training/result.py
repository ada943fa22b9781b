"""The result of a run, and its summary."""

import math
from pathlib import Path
from typing import Any

import jax

from experiments.evaluation import scores


def count_parameters(params: Any) -> int:
    """Returns the number of scalars in a tree of parameters."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


def summary(path: Path, result: dict[str, Any]) -> str:
    """Formats the final scores and the cost of a run."""
    lines = []
    if result.get('stopped_early') and result.get('averaged_steps'):
        best = ', '.join(map(str, result['averaged_steps']))
        lines.append(
            f'stopped early: the dev score stopped improving; best at step {best}'
        )
    lines += [
        f'finished: step {result["step"]:,}, {result["parameters"]:,} parameters, '
        f'{result["train_seconds"]:,.0f} s of training, '
        f'{result["tokens_per_second"]:,.0f} target tokens/s',
        scores.table(result['evaluations']),
        f'files: {path}/ (result.json, metrics.jsonl, checkpoints/, translations/)',
    ]
    return '\n'.join(lines)

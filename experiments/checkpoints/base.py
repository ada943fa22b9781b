"""The parameters that adapters leave fixed, saved once in `base/` of a run.

Checkpoints hold only the others, so they have the size of the adapters. Each also
holds the digest of its base.
"""

from pathlib import Path
from typing import Any

from experiments import storage
from experiments.checkpoints.checkpoints import Checkpoints
from experiments.errors import UserError
from experiments.runtime import processes
from flaxformer_lite.training import freezing

NAME = 'base'


def save(path: Path, params: Any, base_paths: frozenset[str], origin: str) -> None:
    """Saves the parameters in `base_paths`, which come from the run `origin`."""
    if not base_paths:
        return
    if processes.is_first():
        storage.remove(path / NAME)  # leftover of a killed start
    processes.barrier('base')
    _, fixed = freezing.split(params, base_paths)
    checkpoints = Checkpoints(path / NAME)
    checkpoints.save(0, {'params': fixed}, {'run': origin})
    checkpoints.close()


def facts(path: Path) -> dict[str, str]:
    """Returns the origin and the digest of the base of a run; {} without a base."""
    saved = Checkpoints(path / NAME)
    digest = saved.digest(0)
    return {'run': saved.metadata(0).get('run', ''), 'sha256': digest} if digest else {}


def check(checkpoints: Checkpoints) -> None:
    """Raises UserError if a run's base differs from the base of a checkpoint.

    Checkpoints of earlier versions don't name their base.
    """
    path = checkpoints.directory.parent
    found = facts(path)
    for step in checkpoints.steps():
        own = checkpoints.metadata(step).get('base')
        if own and own != found:
            problem = 'differs from the base' if found else 'is missing or damaged'
            raise UserError(
                f'{path / NAME} {problem}: the adapters of step {step} belong to '
                f'{own["run"]}, digest {own["sha256"][:8]}. Restore it from a copy.'
            )


def join(
    checkpoints: Checkpoints, params: Any, abstract: Any, base_paths: frozenset[str]
):
    """Returns the parameters of a checkpoint with those of the run's `base/`.

    Args:
      abstract: Shapes, dtypes and shardings of all parameters.
    """
    if not base_paths:
        return params
    check(checkpoints)
    _, fixed = freezing.split(abstract, base_paths)
    saved = Checkpoints(checkpoints.directory.parent / NAME)
    loaded = saved.average([0], {'params': fixed}).variables
    return freezing.join(params, loaded['params'])

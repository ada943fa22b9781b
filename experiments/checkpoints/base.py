"""The parameters that adapters leave fixed, saved once in `base/` of a run.

Checkpoints hold only the others, so they have the size of the adapters.
"""

from pathlib import Path
from typing import Any

from experiments import storage
from experiments.checkpoints.checkpoints import Checkpoints
from experiments.runtime import processes
from flaxformer_lite.training import freezing

NAME = 'base'


def save(path: Path, params: Any, held: frozenset[str]) -> None:
    """Saves the parameters with the paths `held` of a new run in `path`."""
    if not held:
        return
    if processes.is_first():
        storage.remove(path / NAME)  # of a start that was killed
    processes.barrier('base')
    _, fixed = freezing.split(params, held)
    checkpoints = Checkpoints(path / NAME)
    checkpoints.save(0, {'params': fixed}, {})
    checkpoints.close()


def join(path: Path, params: Any, abstract: Any, held: frozenset[str]) -> Any:
    """Returns the parameters of a checkpoint with those of `base/`.

    Args:
      abstract: Shapes, dtypes and shardings of all parameters.
    """
    if not held:
        return params
    _, fixed = freezing.split(abstract, held)
    loaded = Checkpoints(path / NAME).average([0], {'params': fixed}).variables
    return freezing.join(params, loaded['params'])

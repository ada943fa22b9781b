"""The runner: files, flags, printing and processes around the library.

import experiments

run = experiments.open_run('runs/wmt_small')  # a trained run, for a program of your own
run.translate(['My box.'])
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from experiments.evaluation.opened_run import OpenedRun


def open_run(path: 'Path | str', trust_code: bool = False) -> 'OpenedRun':
    """Opens the run in a directory: its model, and what can be asked of it.

    Args:
      path: the run's directory.
      trust_code: as `OpenedRun`.

    Raises:
      UserError: this is not the directory of a run that has a checkpoint; as
        `OpenedRun`.
    """
    from experiments.evaluation.opened_run import OpenedRun  # which imports JAX

    return OpenedRun(path, trust_code)

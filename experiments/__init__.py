"""The runner: files, flags, printing and processes around the library.

import experiments

run = experiments.open_run('runs/wmt_small')  # a trained run, for your own program
run.translate(['My box.'])
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from experiments.evaluation.opened_run import OpenedRun


def open_run(path: 'Path | str', trust_code: bool = False) -> 'OpenedRun':
    """Opens the run in a directory; see `OpenedRun` for its arguments and errors."""
    from experiments.evaluation.opened_run import OpenedRun  # imports JAX

    return OpenedRun(path, trust_code)

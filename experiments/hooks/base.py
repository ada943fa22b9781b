"""The base class of hooks."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from experiments import storage
from flaxformer_lite.validation import Checked

Row = Mapping[str, Any]


class RunInfo(NamedTuple):
    """A run that starts or resumes.

    Attributes:
      config: Every field by its name, `'train.steps'`.
      step: The checkpoint that it resumes from. 0 at the start.
      rows: The rows of `metrics.jsonl` up to this step.
    """

    path: Path
    config: Mapping[str, Any]
    step: int
    rows: Sequence[Row]


class Hook(Checked):
    """Callbacks of a run, in its first process and between two steps of training.

    Calls depend only on the step and the config, so a resumed run repeats those for
    rows after its checkpoint.

    Attributes:
      package: The package that it requires. '' for none.
    """

    package: ClassVar[str] = ''

    def __post_init__(self):
        super().__post_init__()
        if self.package and importlib.util.find_spec(self.package) is None:
            raise ValueError(
                f'{type(self).__name__} needs the package {self.package}: pip install '
                f'{self.package}. Or leave it out.'
            )

    def start(self, run: RunInfo) -> None:
        """Called once, before all other methods."""

    def row(self, row: Row) -> Row | None:
        """Called with each row of `metrics.jsonl` before it is written.

        Returns:
          Numbers, text or None by name, to add to the row. The row's own entries stay.
        """

    def checkpoint(self, step: int) -> None:
        """Called when `checkpoints/<step>` is complete, and may be read or copied.

        Called again in a run that resumes from it.
        """

    def end(self, result: Row | None) -> None:
        """Called last, with `result.json`; None if the run was stopped or failed."""


def saved_id(file: Path) -> str | None:
    """Returns the id that a hook saved in a JSON file, if it exists."""
    if not storage.exists(file):
        return None
    fix = 'Remove it to start a new run of the service.'
    return storage.read_json(file, str, fix)


def numbers(row: Row) -> dict[str, float]:
    """Returns the numbers of a row, named `train/loss` or `eval/val/loss`."""
    kinds = [str(row[key]) for key in ('kind', 'set') if row.get(key)]
    group = '/'.join(kinds)
    found = {}
    for name, value in row.items():
        is_number = isinstance(value, int | float)
        if is_number and name not in ('step', 'time'):
            found[f'{group}/{name}'] = value
    return found

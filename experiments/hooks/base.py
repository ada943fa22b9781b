"""What every hook offers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from flaxformer_lite.ranges import Checked

Row = Mapping[str, Any]


class Begun(NamedTuple):
    """A run that begins or goes on.

    Attributes:
      path: its directory.
      config: every field by its name, `'train.steps'`.
      step: of the checkpoint that it goes on from; 0 where it begins.
      rows: those of `metrics.jsonl` that stay, all up to this step.
    """

    path: Path
    config: Mapping[str, Any]
    step: int
    rows: Sequence[Row]


class Hook(Checked):
    """What a run calls while it trains: its first process, between two steps.

    Each method may be left out. What is called after a step follows from the step and
    the config alone: a run that was killed calls again, with the same step, for rows
    that came after its checkpoint.

    Attributes:
      package: what has to be installed for it; '' for nothing.

    Raises:
      ValueError: when made, for arguments that cannot be.
    """

    package: ClassVar[str] = ''

    def start(self, run: Begun) -> None:
        """Is called once, before all others."""

    def row(self, row: Row) -> Row | None:
        """Is called with each row of metrics before it is written.

        Args:
          row: as `metrics.jsonl` will have it: `step`, `kind`, `time` and the metrics.

        Returns:
          Further metrics, which this row is given: numbers, text or None by name. One
          that it has stays as it is.
        """

    def checkpoint(self, step: int) -> None:
        """Is called where `checkpoints/<step>` is whole, and may be read or copied.

        That is before the next one is begun. Of one that a run goes on from it is
        called once more.
        """

    def end(self, result: Row | None) -> None:
        """Is called once, after all others.

        Args:
          result: what `result.json` holds; None where the run was stopped or failed.
        """


def numbers(row: Row) -> dict[str, float]:
    """The numbers of a row, named `train/loss` or `eval/val/loss`."""
    kinds = [str(row[key]) for key in ('kind', 'set') if row.get(key)]
    group = '/'.join(kinds)
    found = {}
    for name, value in row.items():
        is_number = isinstance(value, int | float)
        if is_number and name not in ('step', 'time'):
            found[f'{group}/{name}'] = value
    return found

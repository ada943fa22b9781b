"""What became of a sweep's runs, read from their directories."""

from pathlib import Path
from typing import Any, NamedTuple

from experiments import storage
from experiments.errors import UserError
from experiments.runs import directory, failure, metrics_log, result_file
from experiments.sweeps.schema import Cell

FINISHED = 'finished'
UNFINISHED = 'unfinished'
DIVERGED = failure.DIVERGED
FAILED = failure.FAILED
ENDED = (FINISHED, DIVERGED, FAILED)


class Outcome(NamedTuple):
    """What became of a run.

    Attributes:
      status: `finished`, `diverged`, `failed`, or `unfinished`, also where it has not
        begun.
      message: of the error, where there was one.
    """

    status: str
    message: str = ''


def of(path: Path) -> Outcome:
    """The outcome of the run in a directory; files that cannot be read have failed."""
    try:
        if storage.exists(path / directory.RESULT):
            result_file.read(path)
            return Outcome(FINISHED)
        entry = failure.read_failure(path)
    except UserError as error:
        return Outcome(FAILED, str(error))
    if entry is None:
        return Outcome(UNFINISHED)
    return Outcome(entry['status'], entry.get('message', ''))


def is_open(path: Path, began: float) -> bool:
    """Whether a sweep that began at a time has still to make the run of a directory.

    What has diverged would diverge again. What has failed is tried once in each sweep:
    the disk may no longer be full.
    """
    status = of(path).status
    if status == FAILED and (path / failure.NAME).exists():
        return (path / failure.NAME).stat().st_mtime < began
    return status in (UNFINISHED, FAILED)


def steps_done(path: Path) -> int:
    """The last step of which an unfinished run's metrics tell."""
    try:
        rows = metrics_log.read_rows(path)
    except UserError:
        return 0
    return rows[-1]['step'] if rows else 0


def result(path: Path) -> dict[str, Any] | None:
    """The result of a run, or None where it has none that can be read."""
    if of(path).status != FINISHED:
        return None
    return result_file.read(path)


def seconds_a_step(path: Path) -> float | None:
    """What a step of a finished run took, without evaluation."""
    found = result(path)
    if found is None or not found['step']:
        return None
    return found['train_seconds'] / found['step']


def score(cell: Cell, measure: str) -> float | None:
    """The score of a finished run that a sweep's measure names, `'test bleu'`."""
    found = result(cell.path)
    if found is None:
        return None
    name, kind = measure.split()
    return found['evaluations'].get(name, {}).get(kind)

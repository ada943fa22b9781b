"""The seeds that reports of a sweep analyzed, in `runs/.sweeps/<sweep>/looks.json`.

If a sweep gains seeds after a report, its intervals have been looked at before. Every
look can find an effect by chance, so all looks share the error rate.
"""

from pathlib import Path

from experiments import storage
from experiments.errors import UserError, note
from experiments.sweeps.schema import Seeds, Sweep

NAME = 'looks.json'


def read(sweep: Sweep) -> tuple[Seeds, ...]:
    """Returns the seeds of each report by arm; warns if they can't be read."""
    try:
        return tuple(_read(_file(sweep)))
    except UserError as error:
        note(f'earlier reports of this sweep are not counted: {error}')
        return ()


def record(sweep: Sweep) -> None:
    """Adds the seeds that a report analyzes, unless a report has analyzed the same.

    Leaves a record that can't be read unchanged. Warns if it can't be written.
    """
    file = _file(sweep)
    try:
        looks = _read(file)
    except UserError:
        return
    look = {arm: sorted(seeds) for arm, seeds in sweep.analyzed.items() if seeds}
    if not look or look in looks:
        return
    try:
        storage.write_json(file, [*looks, look])
    except (OSError, UserError) as error:
        note(f'later reports will not count this one: {error}')


def _read(file: Path) -> list[Seeds]:
    if not storage.exists(file):
        return []
    return storage.read_json(file, list[dict[str, list[int]]], 'Delete the file.')


def _file(sweep: Sweep) -> Path:
    return sweep.logs / NAME

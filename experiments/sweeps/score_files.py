"""Files with the columns arm, seed and score.

A report stores its own in the same format, as `tables/runs.csv`.
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.errors import UserError
from experiments.storage import as_user_error

COLUMNS = ('arm', 'seed', 'score')

Scores = dict[str, dict[str, float]]


def read_scores(path: Path) -> Scores:
    """Returns the scores of a file. A run with an empty score is missing."""
    found: Scores = {}
    for number, row in enumerate(read_rows(path, COLUMNS), 2):
        arm, seed, score = (row[name] for name in COLUMNS)
        if not score:
            continue
        by_seed = found.setdefault(arm, {})
        where = f'{path}, line {number}'
        if seed in by_seed:
            raise UserError(
                f'{where}: duplicate score of {arm}, seed {seed}. Remove one.'
            )
        try:
            by_seed[seed] = float(score)
        except (TypeError, ValueError):
            raise UserError(
                f'{where}: invalid score {score!r}. Use a number.'
            ) from None
    if len(found) < 2:
        raise UserError(f'{path}: fewer than two arms. Add the scores of another arm.')
    return found


def read_rows(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    with (
        as_user_error('read', path),
        path.open(encoding='utf-8-sig', newline='') as file,
    ):
        rows = csv.DictReader(file)
        names = rows.fieldnames or ()
        for name in columns:
            if name not in names:
                raise UserError(
                    f'{path}: column {name!r} is missing. Found {", ".join(names)}.'
                )
        return list(rows)


def by_arm(rows: Sequence[Mapping[str, str]], column: str) -> Scores:
    """Returns the scores of rows of `tables/runs.csv` that aren't empty."""
    found: Scores = {}
    for row in rows:
        if row.get(column):
            found.setdefault(row['arm'], {})[row['seed']] = float(row[column])
    return found

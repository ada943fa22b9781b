"""Scores that came from elsewhere: a file with the columns arm, seed and score."""

import csv
from pathlib import Path

from experiments.errors import UserError
from experiments.reports.analysis import compare
from experiments.reports.tables import Table, cells_of
from experiments.storage import as_user_error

COLUMNS = ('arm', 'seed', 'score')

Scores = dict[str, dict[str, float]]


def read(path: Path) -> Scores:
    """The scores of a CSV file, by arm and seed; other columns are not read.

    Raises:
      UserError: the file cannot be read, a column is missing, a score is no number, or
        an arm has two of a seed.
    """
    with (
        as_user_error('read', path),
        path.open(encoding='utf-8-sig', newline='') as file,
    ):
        rows = csv.DictReader(file)
        for name in COLUMNS:
            if name not in (rows.fieldnames or ()):
                known = ', '.join(rows.fieldnames or ())
                raise UserError(f'{path} has no column {name!r}: it has {known}')
        found: Scores = {}
        for row in rows:
            by_seed = found.setdefault(row['arm'], {})
            where = f'{path}, line {rows.line_num}'
            if row['seed'] in by_seed:
                raise UserError(
                    f'{where}: {row["arm"]} has two scores of seed {row["seed"]}'
                )
            try:
                by_seed[row['seed']] = float(row['score'])
            except (TypeError, ValueError):
                raise UserError(f'{where}: {row["score"]!r} is no score') from None
    if len(found) < 2:
        raise UserError(f'{path} has fewer than two arms: there is nothing to compare')
    return found


def as_table(scores: Scores, base: str) -> Table:
    """How far arms are from the base, or from each other without one.

    Raises:
      UserError: there is no such arm, or a score is not finite.
    """
    try:
        contrasts = compare(scores, base or None)
    except ValueError as error:
        raise UserError(f'--scores: {error}') from None
    names = ('arm', 'base', 'seeds', 'difference', '95 % interval', 'p')
    rows = [(x.arm, x.base, x.seeds, *cells_of(x)) for x in contrasts]
    return Table('contrasts', 'Differences', names, rows)

"""External scores: a file with the columns arm, seed and score.

A report stores its own in the same format, as `tables/runs.csv`.
"""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.errors import UserError, user_errors
from experiments.reports.analysis import Contrast, Design, compare, pairs_with
from experiments.reports.tables import (
    Table,
    contrast_cells,
    permutation_p,
    shared_decimals,
)
from experiments.storage import as_user_error

COLUMNS = ('arm', 'seed', 'score')
_OF_ANSWERS = ('difference', '95% CI low', '95% CI high')

Scores = dict[str, dict[str, float]]


def read_scores(path: Path) -> Scores:
    found: Scores = {}
    for number, row in enumerate(_read_rows(path, COLUMNS), 2):
        arm, seed, score = (row[name] for name in COLUMNS)
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


def _read_rows(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
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


def compare_scores(path: Path, base: str) -> Table:
    """Compares the arms of a file with the base, or all pairs."""
    scores = read_scores(path)
    with user_errors('--scores: '):
        return as_table(compare(scores, base or None))


def as_table(contrasts: Sequence[Contrast]) -> Table:
    measured = ('difference', '95% CI')
    names = ('arm', 'base', 'seeds', *measured, 'p', 'permutation p')
    rows = []
    for x in contrasts:
        rows.append((x.arm, x.base, x.seeds, *contrast_cells(x), permutation_p(x)))
    digits = shared_decimals([cell for row in rows for cell in row[3:5]])
    decimals: dict[str, int] = dict.fromkeys(measured, digits)
    return Table('contrasts', 'Contrasts', names, rows, decimals)


def recompute(folder: Path) -> tuple[Table, list[str]]:
    """Recomputes the answer of a report from its own scores.

    Returns the differences, and the arms whose row in `answer.csv` disagrees in the
    first three digits.
    """
    runs = folder / 'tables/runs.csv'
    found = read_scores(runs)
    of_runs = _read_rows(runs, COLUMNS)
    data = {row['arm']: row['data'] for row in of_runs if 'data' in row}
    answer = folder / 'tables/answer.csv'
    rows = _read_rows(answer, ('arm',))
    of_sets = [row['arm'] for row in rows if row.get('verdict') == 'base']
    if of_sets:
        bases = dict.fromkeys(found, of_sets[0])
        bases |= {row['arm']: row['base'] for row in rows if 'base' in row}
        pairs = pairs_with(bases, found)
        data = data or bases
    elif rows and all(row.get('base') for row in rows):
        bases = {}
        pairs = [(row['arm'], row['base']) for row in rows]
    else:
        raise UserError(f'{answer}: no base arm. Pass the directory of a report.')
    looks = int(rows[0].get('looks') or 1)
    with user_errors(f'{answer}: '):
        design = Design(looks)
        contrasts = compare(found, contrasts=pairs, design=design, data=data)
    shipped = {(row['arm'], row.get('base') or bases[row['arm']]): row for row in rows}
    others = [x.arm for x in contrasts if not _is_shipped(x, shipped.get(x[:2], {}))]
    return as_table(contrasts), others


def _is_shipped(contrast: Contrast, row: dict[str, str]) -> bool:
    texts = [row.get(name) or 'nan' for name in _OF_ANSWERS]
    shipped = np.array(texts, float)
    # NumPy converts None to nan.
    values = np.array([contrast.effect, contrast.low, contrast.high], float)
    return np.allclose(shipped, values, rtol=1e-3, equal_nan=True)

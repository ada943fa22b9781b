"""The contrasts of external scores."""

from collections.abc import Sequence
from pathlib import Path

from experiments.errors import user_errors
from experiments.reports.tables import (
    Table,
    contrast_cells,
    permutation_p,
    shared_decimals,
)
from experiments.sweeps.analysis import Contrast, compare
from experiments.sweeps.score_files import read_scores


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

"""The shipped results say what follows from the scores of their runs."""

import csv
from pathlib import Path

import pytest

from experiments.reports import scores
from experiments.reports.analysis import compare

ROOT = Path(__file__).parents[1]
RUNS = sorted((ROOT / 'results').glob('*/tables/runs.csv'))


@pytest.mark.parametrize('file', RUNS, ids=lambda file: file.parents[1].name)
def test_the_answer_follows_from_the_runs(file):
    answer = file.with_name('answer.csv').read_text('utf-8').splitlines()
    rows = {row['arm']: row for row in csv.DictReader(answer)}
    (base,) = [arm for arm, row in rows.items() if row['verdict'] == 'the base']
    contrasts = compare(scores.read(file), base)
    assert len(contrasts) == len(rows) - 1
    for contrast in contrasts:
        row = rows[contrast.arm]
        assert float(row['difference']) == pytest.approx(contrast.effect)
        assert float(row['95 % interval low']) == pytest.approx(contrast.low, rel=1e-6)
        assert float(row['95 % interval high']) == pytest.approx(
            contrast.high, rel=1e-6
        )
        assert (row['verdict'] in ('better', 'worse')) == contrast.significant

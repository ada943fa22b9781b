"""Tests that the published results follow from the scores of their runs."""

import csv
import functools
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments import report
from experiments.errors import UserError
from experiments.reports import findings, scores
from experiments.reports.tables import escape_markdown
from experiments.sweeps import planning

ROOT = Path(__file__).parents[3]
SHIPPED = sorted(x.parents[1] for x in (ROOT / 'results').glob('*/tables/runs.csv'))


def arms(folder):
    _, *runs = (folder / 'tables/runs.csv').read_text('utf-8').splitlines()
    return {run.rsplit(',', 2)[0] for run in runs}


# Of one arm there is nothing to compare.
FOLDERS = [folder for folder in SHIPPED if len(arms(folder)) > 1]


@pytest.mark.parametrize('folder', FOLDERS, ids=lambda folder: folder.name)
def test_the_answer_follows_from_the_runs(folder):
    table, others = scores.recompute(folder)
    assert table.rows and not others


def test_an_answer_that_does_not_follow_is_said(tmp_path, command, capsys):
    folder = shutil.copytree(FOLDERS[0], tmp_path / 'x')
    file = folder / 'tables/runs.csv'
    first, arm, *rest = file.read_text('utf-8').splitlines()
    changed = f'{arm.rpartition(",")[0]},99'
    file.write_text('\n'.join([first, changed, *rest]), encoding='utf-8')
    with pytest.raises(SystemExit):
        command(report, f'--recompute={folder}')
    assert 'answer.csv differs in ' in capsys.readouterr().err
    with pytest.raises(UserError, match='--base: has no effect with --recompute'):
        command(report, f'--recompute={folder}', '--base=x')
    file.with_name('answer.csv').write_text('arm\nx\n', encoding='utf-8')
    with pytest.raises(UserError, match='answer.csv: no base arm'):
        scores.recompute(folder)


def declared(folder):
    sweep = planning.load(ROOT / f'configs/sweeps/{folder.name}.py')
    found = scores.read_scores(folder / 'tables/runs.csv')
    study = SimpleNamespace(
        sweep=sweep,
        scores=lambda: found,
        measure=sweep.measure,
    )
    return findings.answer(study, findings.declared_contrasts(study))


# Three at each commit, all of them each night.
@pytest.mark.parametrize(
    'folder',
    [
        pytest.param(folder, marks=[pytest.mark.slow] * (i >= 3), id=folder.name)
        for i, folder in enumerate(FOLDERS)
    ],
)
def test_a_report_says_what_its_scores_say_of_the_question(folder):
    text = (folder / 'report.md').read_text('utf-8')
    for sentence in declared(folder):
        assert escape_markdown(sentence) in text


NUMBER = r'−?\d+(?:\.\d+)?'
INTERVAL = re.compile(rf'\((?:[^()|]{{0,30}}[ ,;])?({NUMBER}) to ({NUMBER})[,;)]')
EFFECT = re.compile(rf'([+−]{NUMBER})\*{{0,2}} \(({NUMBER}) to ({NUMBER})\)')
SPREAD = re.compile(rf'(?<![\d.])({NUMBER})%?\*{{0,2}} ± ({NUMBER})')
OTHERS = {
    ('5.2', '10.7'),  # of version 0.3
    ('1.2', '11.7'),  # the ends of several intervals
    ('−0.05', '2.5'),  # the same
    ('−1.3', '0.8'),  # between two reports
    ('96.6', '0.3'),  # of runs that no table has
    ('39.92', '0.40'),  # the same
    ('41.00', '0.09'),  # on lower-cased tokens
    ('40.77', '0.41'),  # the same
}
TEXTS = [ROOT / 'README.md', ROOT / 'results/README.md', ROOT / 'results/published.md']


@functools.cache
def numbers_of_tables():
    """Returns differences with intervals, and means with deviations, of all tables."""
    effects, spreads = [], []
    for file in (ROOT / 'results').glob('*/tables/*.csv'):
        for row in csv.DictReader(file.read_text('utf-8').splitlines()):
            if row.get('95% CI low'):
                names = ('difference', '95% CI low', '95% CI high')
                effect, low, high = (float(row[name]) for name in names)
                effects += [(effect, low, high), (-effect, -high, -low)]
            for name in row:
                if row.get(f'{name} sd'):
                    mean, sd = float(row[name]), float(row[f'{name} sd'])
                    spreads += [(mean, sd), (100 - mean, sd)]  # percent right, wrong
    return effects, spreads


def has_rounded(rows, texts):
    def is_rounded(number, text):
        decimals = len(text.partition('.')[2])
        return f'{number:.{decimals}f}'.replace('-', '−') == text.lstrip('+')

    return any(all(map(is_rounded, row, texts)) for row in rows)


@pytest.mark.parametrize('page', TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_quotes_numbers_that_a_table_has(page):
    effects, spreads = numbers_of_tables()
    text = ' '.join(page.read_text('utf-8').split())
    kinds = [(EFFECT, effects), (SPREAD, spreads)]
    kinds.append((INTERVAL, [(low, high) for _, low, high in effects]))
    quoted = [(x, rows) for kind, rows in kinds for x in kind.findall(text)]
    assert quoted
    unknown = [
        x for x, rows in quoted if x[-2:] not in OTHERS and not has_rounded(rows, x)
    ]
    assert not unknown


def test_readme_counts_the_sweeps_with_several_arms():
    text = (ROOT / 'README.md').read_text('utf-8')
    assert f' {len(FOLDERS)} ablations' in text

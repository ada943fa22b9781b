"""Tests that the published results and pages follow from the scores of their runs."""

import csv
import functools
import json
import re
from pathlib import Path

import pytest

from experiments.evaluation.measure import Measure
from experiments.reports import findings, recomputation
from experiments.reports.tables import escape_markdown

ROOT = Path(__file__).parents[3]
SHIPPED = sorted(x.parents[1] for x in (ROOT / 'results').glob('*/tables/runs.csv'))


# A quarter of them at each commit, all of them each night.
@pytest.mark.parametrize(
    'folder',
    [
        pytest.param(folder, marks=[pytest.mark.slow] * (i % 4 > 0), id=folder.name)
        for i, folder in enumerate(SHIPPED)
    ],
)
def test_answer_and_text_of_a_report_follow_from_its_runs(folder):
    result = recomputation.recompute(folder)
    assert result.mismatches == []
    text = (folder / 'report.md').read_text('utf-8')
    measure = Measure(**result.answer['measure'])
    for contrast in result.contrasts if result.answer['declared'] else ():
        assert escape_markdown(findings.sentence(measure, contrast)) in text


def test_results_are_small_and_link_to_files_that_exist():
    files = [x for x in (ROOT / 'results').rglob('*') if x.is_file()]
    assert sum(x.stat().st_size for x in files) < 4_000_000
    for page in (x for x in files if x.suffix == '.md'):
        for link in re.findall(r'(?<=\]\()[^)#\s]+', page.read_text('utf-8')):
            assert '://' in link or (page.parent / link).exists(), (page, link)


NUMBER = r'−?\d+(?:\.\d+)?'
INTERVAL = re.compile(rf'\((?:[^()|]{{0,30}}[ ,;])?({NUMBER}) to ({NUMBER})[,;)]')
EFFECT = re.compile(rf'([+−]{NUMBER})\*{{0,2}} \(({NUMBER}) to ({NUMBER})\)')
SPREAD = re.compile(rf'(?<![\d.])({NUMBER})%?\*{{0,2}} ± ({NUMBER})')
NOT_IN_A_TABLE = {
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
                difference = 'change' if 'change' in row else 'difference'
                names = (difference, '95% CI low', '95% CI high')
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


@pytest.mark.ci
@pytest.mark.parametrize('page', TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_quoted_numbers_are_in_a_table(page):
    effects, spreads = numbers_of_tables()
    text = ' '.join(page.read_text('utf-8').split())
    kinds = [(EFFECT, effects), (SPREAD, spreads)]
    kinds.append((INTERVAL, [(low, high) for _, low, high in effects]))
    quoted = [(x, rows) for kind, rows in kinds for x in kind.findall(text)]
    assert quoted
    unknown = [
        x
        for x, rows in quoted
        if x[-2:] not in NOT_IN_A_TABLE and not has_rounded(rows, x)
    ]
    assert not unknown


def test_readme_counts_the_sweeps_with_several_arms():
    text = (ROOT / 'README.md').read_text('utf-8')
    answers = [json.loads((x / 'answer.json').read_text('utf-8')) for x in SHIPPED]
    several = sum(len(answer['arms']) > 1 for answer in answers)
    assert f' {several} ablations' in text


def lost_by_holm():
    """Returns the significant contrasts of all answers that Holm's correction removes.

    Also returns the number of contrasts, and of significant ones.
    """
    tested = []
    for folder in SHIPPED:
        answer = json.loads((folder / 'answer.json').read_text('utf-8'))
        for x in answer['contrasts']:
            if x['p'] is not None:
                tested.append((x['p'], folder.name, f'{x["arm"]} / {x["base"]}'))
    tested.sort()
    significant = [each for each in tested if each[0] < 0.05]
    largest = 0.0
    lost = []
    for i, (p, *where) in enumerate(significant):
        largest = max(largest, p * (len(tested) - i))
        if largest >= 0.05:
            lost.append(tuple(where))
    return lost, len(tested), len(significant)


def test_page_lists_the_contrasts_that_holms_correction_removes():
    lost, number, significant = lost_by_holm()
    text = (ROOT / 'results/README.md').read_text('utf-8')
    _, _, section = text.partition('## After a correction over this page\n')
    section, _, _ = section.partition('\n## ')
    for stated in (
        f'Over all {number} contrasts',
        f'{significant - len(lost)} of {significant} significant',
        f'The other {len(lost)} are',
    ):
        assert stated in ' '.join(section.split())
    rows = re.findall(r'^\| \[`(\w+)`\]\(\w+/report\.md\) \| (.*) \|$', section, re.M)
    listed = {(name, pair) for name, pairs in rows for pair in pairs.split('; ')}
    assert listed == set(lost)

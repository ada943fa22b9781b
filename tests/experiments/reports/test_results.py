"""Tests that the published results follow from the scores of their runs."""

import csv
import functools
import io
import json
import re
import shutil
from pathlib import Path

import pytest

from experiments import report
from experiments.errors import UserError
from experiments.evaluation.measure import Measure
from experiments.reports import findings, recomputation
from experiments.reports.tables import escape_markdown

ROOT = Path(__file__).parents[3]
SHIPPED = sorted(x.parents[1] for x in (ROOT / 'results').glob('*/tables/runs.csv'))
TASKS = ROOT / 'results/norm_tasks'  # tuned, two data sets
LOOKS = ROOT / 'results/optimizers_tuned'  # three arms, two looks, a margin


@pytest.mark.parametrize('folder', SHIPPED, ids=lambda folder: folder.name)
def test_the_answer_follows_from_the_runs(folder):
    assert recomputation.recompute(folder).mismatches == []


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(LOOKS, tmp_path / 'x')


def rows_of_answer(folder):
    text = (folder / 'tables/answer.csv').read_text('utf-8')
    return list(csv.DictReader(io.StringIO(text)))


def change_table(folder, column, value, row=0):
    file = folder / 'tables/answer.csv'
    rows = rows_of_answer(folder)
    rows[row][column] = value
    lines = [','.join(rows[0]), *(','.join(x.values()) for x in rows)]
    file.write_text('\n'.join(lines), encoding='utf-8')


def change_answer(folder, change):
    file = folder / 'answer.json'
    answer = json.loads(file.read_text('utf-8'))
    change(answer)
    file.write_text(json.dumps(answer), encoding='utf-8')


def changed(folder):
    """Returns the file, row and column of each value that does not follow."""
    found = recomputation.recompute(folder).mismatches
    return {(x.file, x.row, x.column) for x in found}


@pytest.mark.parametrize(
    'column', ['verdict', 'margin', 'looks', 'minimum detectable', 'p', '95% CI low']
)
def test_changed_value_of_the_table_is_named(folder, column):
    change_table(folder, column, 'worse' if column == 'verdict' else '1', row=2)
    arm = 'schedule-free AdamW'
    assert changed(folder) == {('tables/answer.csv', arm, column)}


@pytest.mark.parametrize('column', ['verdict', 'detectable', 'equivalent', 'permuted'])
def test_changed_value_of_the_answer_is_named(folder, column):
    value = 'equivalent' if column == 'verdict' else 0.5
    change_answer(folder, lambda x: x['contrasts'][1].update({column: value}))
    assert changed(folder) == {('answer.json', 'SOAP compared with Adam', column)}


def test_changed_looks_and_margin_of_the_answer_are_named(folder):
    change_answer(folder, lambda answer: answer.update(looks=1, margin=20.0))
    found = changed(folder)
    for arm in ('Muon', 'SOAP'):
        for column in ('looks', 'margin', 'p', '95% CI high', 'minimum detectable'):
            assert ('tables/answer.csv', arm, column) in found
    arm = 'schedule-free AdamW'
    assert ('tables/answer.csv', arm, 'verdict') in found
    pair = f'{arm} compared with Adam'
    columns = {'low', 'high', 'p', 'permuted', 'detectable', 'verdict', 'equivalent'}
    assert {('answer.json', pair, x) for x in columns} <= found


def test_missing_contrast_is_named(folder):
    change_answer(folder, lambda answer: answer['contrasts'].pop())
    arm = 'schedule-free AdamW'
    # Fewer contrasts also have narrower intervals.
    assert ('tables/answer.csv', arm, 'difference') in changed(folder)
    file = folder / 'tables/answer.csv'
    lines = (LOOKS / 'tables/answer.csv').read_text('utf-8').splitlines()
    shutil.copy(LOOKS / 'answer.json', folder)
    file.write_text('\n'.join(lines[:-1]), encoding='utf-8')
    assert changed(folder) == {('tables/answer.csv', arm, 'row')}


def test_recompute_names_the_values_that_differ(folder, command, capsys):
    assert 'matches ' in command(report, f'--recompute={folder}').out
    file = folder / 'tables/runs.csv'
    text = file.read_text('utf-8').replace('Muon,0,55.86', 'Muon,0,45.86')
    file.write_text(text, encoding='utf-8')
    with pytest.raises(SystemExit):
        command(report, f'--recompute={folder}', '--json')
    shown = capsys.readouterr()
    answer = json.loads(shown.out)
    assert answer['contrasts'][0]['effect'] == pytest.approx(7.037 - 10 / 8, abs=1e-3)
    first, *_ = answer['differs']
    assert first['row'] == 'Muon compared with Adam' and first['column'] == 'effect'
    line = f'{folder}/tables/answer.csv: Muon: difference is 7.037 instead of 5.787'
    assert line in shown.err


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (lambda x: x.pop('blocks'), 'blocks'),
        (lambda x: x.update(looks=0), 'looks: '),
        (lambda x: x.update(further=[{}]), r'further\[0\]: .* measure'),
        (lambda x: x['contrasts'][0].pop('arm'), r'contrasts\[0\]: .* arm'),
        (lambda x: x['contrasts'][0].update(arm='x'), "'x'"),
    ],
)
def test_damaged_answer_is_an_error_of_one_line(folder, change, message):
    change_answer(folder, change)
    with pytest.raises(UserError, match=message) as error:
        recomputation.recompute(folder)
    assert '\n' not in str(error.value)


def test_report_without_an_answer_must_be_written_again(folder, command):
    (folder / 'answer.json').unlink()
    with pytest.raises(UserError, match='--out'):
        command(report, f'--recompute={folder}')
    for flag in ('--base=x', '--csv', '--scores=x'):
        with pytest.raises(UserError, match=flag.split('=')[0]):
            command(report, f'--recompute={folder}', flag)


def test_figures_are_drawn_again_from_the_tables(command, tmp_path):
    out = tmp_path / 'report'
    shown = command(report, f'--recompute={TASKS}', f'--out={out}').out
    assert shown.endswith(f'{out}/ (tables/, figures/)\n')
    drawn = {x.name for x in (out / 'figures').iterdir() if x.suffix == '.svg'}
    assert drawn == {'differences.svg', 'tuning.svg', 'score_by_training_flops.svg'}
    columns = ('arm', 'base', 'looks', 'margin', 'verdict')
    old, new = (
        [[row.get(x) for x in columns] for row in rows_of_answer(x)]
        for x in (TASKS, out)
    )
    assert old == new
    svg = (out / 'figures/differences.svg').read_text('utf-8')
    assert svg.count('>post_norm, warm-up − pre_norm, warm-up<') == 2  # data sets
    svg = (out / 'figures/tuning.svg').read_text('utf-8')
    assert '>SCAN, pre_norm, warm-up<' in svg
    with pytest.raises(UserError, match='Pass another'):
        command(report, f'--recompute={TASKS}', f'--out={TASKS}')


def test_results_are_small_and_link_to_files_that_exist():
    files = [x for x in (ROOT / 'results').rglob('*') if x.is_file()]
    assert sum(x.stat().st_size for x in files) < 4_000_000
    for page in (x for x in files if x.suffix == '.md'):
        for link in re.findall(r'(?<=\]\()[^)#\s]+', page.read_text('utf-8')):
            assert '://' in link or (page.parent / link).exists(), (page, link)


# Three at each commit, all of them each night.
@pytest.mark.parametrize(
    'folder',
    [
        pytest.param(folder, marks=[pytest.mark.slow] * (i >= 3), id=folder.name)
        for i, folder in enumerate(SHIPPED)
    ],
)
def test_answer_of_a_report_follows_from_its_scores(folder):
    text = (folder / 'report.md').read_text('utf-8')
    found = recomputation.recompute(folder)
    answer, contrasts = found.answer, found.contrasts
    measure = Measure(**answer['measure'])
    for contrast in contrasts if answer['declared'] else ():
        sentence = findings.sentence(measure, contrast)
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


@pytest.mark.parametrize('page', TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_quoted_numbers_are_in_a_table(page):
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

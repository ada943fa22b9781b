"""Tests that the answer of a report is recomputed from its runs' scores."""

import csv
import io
import json
import shutil
from pathlib import Path

import golden_report
import pytest

from experiments import report
from experiments.errors import UserError
from experiments.reports import recomputation

RESULTS = Path(__file__).parents[3] / 'results'
TASKS = RESULTS / 'norm_tasks'  # tuned, two data sets
LOOKS = RESULTS / 'optimizers_tuned'  # three arms, two looks, a margin


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(LOOKS, tmp_path / 'x')


def read_rows(file):
    return list(csv.DictReader(io.StringIO(file.read_text('utf-8'))))


def change_table(file, row, column, value):
    rows = read_rows(file)
    rows[row][column] = value
    with file.open('w', encoding='utf-8', newline='') as lines:
        writer = csv.DictWriter(lines, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def change_answer(folder, change):
    file = folder / 'answer.json'
    answer = json.loads(file.read_text('utf-8'))
    change(answer)
    file.write_text(json.dumps(answer), encoding='utf-8')


def mismatches(folder):
    """Returns the file, row and column of each value that differs."""
    result = recomputation.recompute(folder).mismatches
    return {(x.file, x.row, x.column) for x in result}


@pytest.mark.parametrize(
    'column', ['verdict', 'margin', 'looks', 'minimum detectable', 'p', '95% CI low']
)
def test_changed_value_of_the_table_is_named(folder, column):
    value = 'worse' if column == 'verdict' else '1'
    change_table(folder / 'tables/answer.csv', 2, column, value)
    row = ('tables/answer.csv', 'schedule-free AdamW', column)
    assert mismatches(folder) == {row}


@pytest.mark.parametrize('column', ['verdict', 'detectable', 'equivalent', 'permuted'])
def test_changed_value_of_the_answer_is_named(folder, column):
    value = 'equivalent' if column == 'verdict' else 0.5
    change_answer(folder, lambda x: x['contrasts'][1].update({column: value}))
    assert mismatches(folder) == {('answer.json', 'SOAP compared with Adam', column)}


def test_missing_contrast_is_named(folder):
    change_answer(folder, lambda answer: answer['contrasts'].pop())
    arm = 'schedule-free AdamW'
    # Fewer contrasts also have narrower intervals.
    assert ('tables/answer.csv', arm, 'difference') in mismatches(folder)
    shutil.copy(LOOKS / 'answer.json', folder)
    lines = (LOOKS / 'tables/answer.csv').read_text('utf-8').splitlines()
    (folder / 'tables/answer.csv').write_text('\n'.join(lines[:-1]), encoding='utf-8')
    assert mismatches(folder) == {('tables/answer.csv', arm, 'row')}


def test_command_names_the_values_that_differ(folder, command, capsys):
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
    ids=['blocks', 'looks', 'further', 'no arm', 'unknown arm'],
)
def test_damaged_answer_is_rejected(folder, change, message):
    change_answer(folder, change)
    with pytest.raises(UserError, match=message) as error:
        recomputation.recompute(folder)
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('flag', ['--out', '--base=x', '--csv', '--scores=x'])
def test_recompute_rejects_other_flags_and_reports_without_an_answer(
    folder, command, flag
):
    flags = [f'--recompute={folder}', flag]
    if flag == '--out':  # with which the report must be written again
        (folder / 'answer.json').unlink()
        flags.pop()
    with pytest.raises(UserError, match=flag.split('=')[0]):
        command(report, *flags)


def test_figures_are_drawn_again_from_the_tables(command, tmp_path):
    out = tmp_path / 'report'
    command(report, f'--recompute={TASKS}', f'--out={out}')
    names = {x.name for x in (out / 'figures').iterdir() if x.suffix == '.svg'}
    assert names == {'differences.svg', 'tuning.svg', 'score_by_training_flops.svg'}
    columns = ('arm', 'base', 'looks', 'margin', 'verdict')
    old, new = (
        [[row.get(x) for x in columns] for row in read_rows(x / 'tables/answer.csv')]
        for x in (TASKS, out)
    )
    assert old == new
    svg = (out / 'figures/differences.svg').read_text('utf-8')
    assert svg.count('>post_norm, warm-up − pre_norm, warm-up<') == 2  # data sets
    svg = (out / 'figures/tuning.svg').read_text('utf-8')
    assert '>SCAN, pre_norm, warm-up<' in svg
    with pytest.raises(UserError, match='Pass another'):
        command(report, f'--recompute={TASKS}', f'--out={TASKS}')


def test_answer_is_recomputed_with_data_sets_tuning_and_further_measures(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / 'report'
    golden_report.write_report('factorial', folder)
    result = recomputation.recompute(folder)
    assert [x[:2] for x in result.contrasts] == [('2000, post', '2000, pre')]
    assert not result.mismatches
    change_table(folder / 'tables/answer_chrf.csv', 0, '95% CI low', '99')
    row = ('tables/answer_chrf.csv', '2000, post', '95% CI low')
    assert mismatches(folder) == {row}

    def change(answer):
        for trial in answer['trials']:
            trial['means'] = [30.0, 29.9, 29.8]

    # Nearly equal trials make the choice of a value uncertain.
    change_answer(folder, change)
    assert {'low', 'high', 'p'} <= {column for _, _, column in mismatches(folder)}

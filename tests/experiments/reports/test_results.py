"""Tests that the published results follow from the scores of their runs."""

import csv
import io
import json
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
LOOKS = ROOT / 'results/optimizers_tuned'  # three arms, two looks, a margin


@pytest.mark.parametrize('folder', SHIPPED, ids=lambda folder: folder.name)
def test_the_answer_follows_from_the_runs(folder):
    assert recomputation.recompute(folder).mismatches == []


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(LOOKS, tmp_path / 'x')


def change_table(folder, column, value, row=0):
    file = folder / 'tables/answer.csv'
    rows = list(csv.DictReader(io.StringIO(file.read_text('utf-8'))))
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


def test_command_names_what_does_not_follow(folder, command, capsys):
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
        (lambda answer: answer.pop('blocks'), 'blocks is missing'),
        (lambda answer: answer.update(looks=0), 'looks must be a positive number'),
        (
            lambda answer: answer.update(further=[{}]),
            r'further\[0\].measure is',
        ),
        (lambda answer: answer['contrasts'][0].pop('arm'), 'contrasts.arm is missing'),
        (
            lambda answer: answer['contrasts'][0].update(arm='x'),
            "answer.json: unknown arm 'x'",
        ),
    ],
)
def test_damaged_answer_is_an_error_of_one_line(folder, change, message):
    change_answer(folder, change)
    with pytest.raises(UserError, match=message) as error:
        recomputation.recompute(folder)
    assert '\n' not in str(error.value)


def test_report_without_an_answer_must_be_written_again(folder, command):
    (folder / 'answer.json').unlink()
    with pytest.raises(UserError, match='Write the report again with --out'):
        command(report, f'--recompute={folder}')
    for flag in ('--base=x', '--csv', '--out=x', '--scores=x'):
        message = f'{flag.split("=")[0]}: has no effect with --recompute'
        with pytest.raises(UserError, match=message):
            command(report, f'--recompute={folder}', flag)


# Three at each commit, all of them each night.
@pytest.mark.parametrize(
    'folder',
    [
        pytest.param(folder, marks=[pytest.mark.slow] * (i >= 3), id=folder.name)
        for i, folder in enumerate(SHIPPED)
    ],
)
def test_a_report_says_what_its_scores_say_of_the_question(folder):
    text = (folder / 'report.md').read_text('utf-8')
    answer, contrasts, _ = recomputation.recompute(folder)
    measure = Measure(**answer['measure'])
    for contrast in contrasts if answer['declared'] else ():
        sentence = findings.sentence(measure, contrast)
        assert escape_markdown(sentence) in text

"""Tests that the published results follow from the scores of their runs."""

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

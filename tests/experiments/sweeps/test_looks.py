"""Tests of looks at a sweep: reports that are followed by more seeds."""

import sys

import pytest
from planned_sweeps import SMALL, finish, plan_small

from experiments import report, storage
from experiments.reports import arms, findings
from experiments.runs import directory, reading
from experiments.sweeps import progress

RECORD = 'runs/.sweeps/heads/looks.json'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def finished_sweep(folder, **changes):
    sweep = plan_small(folder, **changes)
    for run in sweep.runs:
        if not run.path.exists():
            score = 30.0 + run.seed % 3 + len(run.arm) * (run.seed % 2)
            with directory.open_run(run.path, run.config.to_dict()):
                finish(run, score)
    return sweep


@pytest.fixture
def reported_looks(folder, monkeypatch, capsys):
    """Returns a function that writes a report and returns its looks and warnings."""

    def run():
        argv = ['report', f'--sweep={folder / "heads.py"}', '--json']
        monkeypatch.setattr(sys, 'argv', argv)
        report.main()
        out, err = capsys.readouterr()
        return int(out.partition('"looks": ')[2].partition(',')[0]), err

    return run


def test_seeds_added_after_a_report_make_a_second_look(folder, reported_looks):
    finished_sweep(folder, seeds=[0, 1, 2])
    assert reported_looks()[0] == 1
    assert reported_looks()[0] == 1  # of the same runs
    sweep = finished_sweep(folder, seeds=[0, 1, 2, 3, 4])
    assert sweep.looks == 2
    assert 'looks     2' in progress.heading(sweep)
    runs = [reading.read_run(run.path) for run in sweep.runs]
    answer = findings.answer(arms.study(runs, sweep).as_look())
    (line,) = [x for x in answer if 'Looks' in x]
    assert '2' in line and RECORD in line
    assert [reported_looks()[0], reported_looks()[0]] == [2, 2]
    assert finished_sweep(folder, seeds=range(6)).looks == 3
    # There was only one look at the first seeds alone.
    assert finished_sweep(folder, seeds=[0, 1, 2]).looks == 1
    # Further seeds count as a look; further arms do not.
    more = SMALL['arms'] | {'narrow': {'model.d_ff': 8}}
    assert plan_small(folder, arms=more, seeds=[0, 1, 2]).looks == 1
    assert plan_small(folder, arms=more, seeds=[5, 6]).looks == 3


def test_looks_are_at_least_those_that_the_sweep_plans(folder, reported_looks):
    seeds = 'until(half_width=1e-3, most=9)'
    assert finished_sweep(folder, seeds=seeds).looks == 3
    reported_looks()
    assert finished_sweep(folder, seeds=seeds).looks == 3


@pytest.mark.parametrize('record', ['{', '[3]', '[{"base": 3}]', '[{"base": ["0"]}]'])
def test_damaged_record_does_not_stop_a_report(folder, reported_looks, record):
    finished_sweep(folder, seeds=[0, 1])
    file = folder / RECORD
    storage.write(file, record)
    number, err = reported_looks()
    assert number == 1
    (warning,) = [x for x in err.splitlines() if 'earlier reports' in x]
    assert RECORD in warning
    assert file.read_text('utf-8') == record


def test_record_that_cannot_be_written_does_not_stop_a_report(folder, reported_looks):
    finished_sweep(folder, seeds=[0, 1])
    (folder / 'runs/.sweeps').write_text('', 'utf-8')
    number, err = reported_looks()
    assert number == 1 and 'later reports will not count this one: ' in err

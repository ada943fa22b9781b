"""Tests of the looks at a sweep: reports that more seeds follow."""

import dataclasses
import sys

import numpy as np
import pytest
from test_sweep_plans import finish
from test_sweep_schema import write_sweep

from experiments import report
from experiments.reports import arms, findings
from experiments.runs import directory, reading
from experiments.storage import write_json
from experiments.sweeps import analysis, looks, planning, progress

SMALL = {'model.d_model': 16, 'model.num_heads': 2, 'train.steps': 100}
ARMS = {'base': {}, 'wide': {'model.d_ff': 32}}
RECORD = 'runs/.sweeps/heads/looks.json'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planned(folder, **changes):
    """Returns a sweep whose runs have finished."""
    fields = {'overrides': SMALL, 'arms': ARMS} | changes
    sweep = planning.load(write_sweep(folder, **fields))
    for run in sweep.runs:
        if not run.path.exists():
            score = 30.0 + run.seed % 3 + len(run.arm) * (run.seed % 2)
            with directory.open_run(run.path, run.config.to_dict()):
                finish(run, score)
    return sweep


def report_json(monkeypatch, folder):
    argv = ['report', f'--sweep={folder / "heads.py"}', '--json']
    monkeypatch.setattr(sys, 'argv', argv)
    report.main()


def study_of(sweep):
    runs = [reading.read_run(run.path) for run in sweep.runs if run.path.exists()]
    return arms.study(runs, sweep).as_look()


def test_seeds_added_after_a_report_make_a_second_look(folder, monkeypatch, capsys):
    planned(folder, seeds=[0, 1, 2])
    report_json(monkeypatch, folder)
    assert '"looks": 1' in capsys.readouterr().out
    report_json(monkeypatch, folder)  # of the same runs
    assert '"looks": 1' in capsys.readouterr().out
    sweep = planned(folder, seeds=[0, 1, 2, 3, 4])
    assert sweep.looks == 2
    assert 'looks     2' in progress.heading(sweep)
    (line,) = [x for x in findings.answer(study_of(sweep)) if 'Looks' in x]
    assert '2' in line and RECORD in line
    for _ in range(2):
        report_json(monkeypatch, folder)
        assert '"looks": 2' in capsys.readouterr().out
    assert planned(folder, seeds=range(6)).looks == 3
    # The first seeds alone have been looked at only once.
    assert planned(folder, seeds=[0, 1, 2]).looks == 1


def test_other_arms_are_not_another_look(folder, monkeypatch, capsys):
    planned(folder, seeds=[0, 1])
    report_json(monkeypatch, folder)
    more = ARMS | {'narrow': {'model.d_ff': 8}}
    assert planned(folder, arms=more, seeds=[0, 1]).looks == 1
    assert planned(folder, arms=more, seeds=[2, 3]).looks == 2


def test_looks_are_at_least_those_that_the_sweep_plans(folder, monkeypatch, capsys):
    seeds = 'until(half_width=1e-3, most=9)'
    assert planned(folder, seeds=seeds).looks == 3
    report_json(monkeypatch, folder)
    assert planned(folder, seeds=seeds).looks == 3


@pytest.mark.parametrize('record', ['{', '[3]', '[{"base": 3}]', '[{"base": ["0"]}]'])
def test_a_damaged_record_does_not_stop_a_report(folder, monkeypatch, capsys, record):
    planned(folder, seeds=[0, 1])
    file = folder / RECORD
    file.parent.mkdir(parents=True)
    file.write_text(record, 'utf-8')
    report_json(monkeypatch, folder)
    out, err = capsys.readouterr()
    assert '"looks": 1' in out
    (warning,) = [x for x in err.splitlines() if 'earlier reports' in x]
    assert RECORD in warning
    assert file.read_text('utf-8') == record


def test_a_record_that_cannot_be_written_does_not_stop_a_report(
    folder, monkeypatch, capsys
):
    planned(folder, seeds=[0, 1])
    (folder / 'runs/.sweeps').write_text('', 'utf-8')
    report_json(monkeypatch, folder)
    out, err = capsys.readouterr()
    assert '"looks": 1' in out
    assert 'later reports will not count this one: ' in err


def simulated(random, files, folder, has_enough):
    """Simulates reports of equal arms until a rule ends them.

    Returns whether the last one finds an effect, and whether one would that ignores
    the earlier looks.
    """
    write_json(folder / RECORD, [])
    values = random.standard_normal((len(ARMS), 9))
    alarms = []
    for number, sweep in files.items():
        scores = {
            arm: dict(enumerate(row[:number].tolist()))
            for arm, row in zip(ARMS, values, strict=True)
        }
        seen = looks.read(sweep)
        sweep = dataclasses.replace(sweep, reports=seen, analyzed=scores)
        looks.record(sweep)
        design = planning.design(sweep)
        (counted,) = analysis.compare(scores, base='base', design=design)
        (alone,) = analysis.compare(scores, base='base')
        assert design.looks == list(files).index(number) + 1
        alarms.append((counted.significant, alone.significant))
        if has_enough(counted):
            break
    return alarms


@pytest.mark.slow
def test_seeds_added_after_reports_keep_the_error_rate(folder, monkeypatch):
    monkeypatch.setattr(analysis, '_POINTS', 11)
    monkeypatch.setattr(analysis, '_PERMUTATIONS', 1)
    random = np.random.default_rng(6)
    files = {n: planned(folder, seeds=range(n)) for n in (3, 6, 9)}

    def is_narrow(x):
        return x.high - x.low < 3

    last = [simulated(random, files, folder, is_narrow)[-1] for _ in range(400)]
    counted, _ = np.mean(last, axis=0)
    assert counted < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)


@pytest.mark.slow
def test_counted_looks_bound_the_error_rate_of_repeated_reports(folder, monkeypatch):
    """The first report alone has a rate of 5%, so no later one can restore it."""
    monkeypatch.setattr(analysis, '_POINTS', 11)
    monkeypatch.setattr(analysis, '_PERMUTATIONS', 1)
    random = np.random.default_rng(7)
    files = {n: planned(folder, seeds=range(n)) for n in (3, 6, 9)}
    all_looks = [simulated(random, files, folder, lambda x: False) for _ in range(400)]
    counted, alone = np.mean([np.any(x, axis=0) for x in all_looks], axis=0)
    assert counted < 0.05 * (1 + 1 / 2 + 1 / 3)
    assert counted < 0.75 * alone

"""Tests of a sweep's plan, its power, and the output while it runs."""

import functools

import pytest
from planned_sweeps import (
    DIVERGED,
    TUNE,
    fail,
    finish,
    finish_trials,
    plan_small,
)

from experiments.command_line import console
from experiments.costs.ledger import ledger
from experiments.sweeps import analysis, planning, power, progress


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


cached_ledger = functools.cache(ledger)


@pytest.fixture(autouse=True)
def ledger_calls(monkeypatch):
    """Returns the configs whose costs are counted."""
    configs = []
    monkeypatch.setattr(
        'experiments.costs.ledger.ledger',
        lambda config: configs.append(config) or cached_ledger(config),
    )
    return configs


def training_flops(run):
    return float(cached_ledger(run.config)['flops']['training'])


@pytest.fixture
def sweep(folder):
    arms = {name: {'model.d_ff': 16 * i} for i, name in enumerate('abc', 1)}
    return plan_small(folder, arms=arms, base='a', seeds=[0])


def test_progress_shows_the_score_time_or_failure_of_each_new_run(sweep, capsys):
    first, second, third = sweep.runs
    finish(first)
    shown = {first.path}
    finish(second)
    fail(third, DIVERGED)
    progress.say_ended(sweep, shown)
    progress.say_ended(sweep, shown)
    assert capsys.readouterr().out.splitlines() == [
        '[2/3] b, seed 0: test bleu 12.50, trained in 0:50',
        '[3/3] c, seed 0: diverged: not finite',
    ]
    rows = [line.split() for line in progress.summary(sweep).splitlines()[2:]]
    assert rows == [
        ['a', '1', 'finished', '12.50'],
        ['b', '1', 'finished', '12.50'],
        ['c', '1', 'diverged', '-'],
    ]


def test_hours_are_estimated_from_runs_with_steps_of_similar_size():
    large = progress.Work(flops=4e9, batch=1e6)
    small = progress.Work(flops=1e9, batch=2e5, seconds=900)
    similar = progress.Work(flops=1e9, batch=3e5, seconds=9)
    unknown = progress.Work(flops=None, batch=None, seconds=9)
    flops = 'cost: 4 × 10⁹ FLOPs'
    assert progress.total_cost([large], [small, unknown]) == flops
    text = progress.total_cost([large], [small, unknown, similar])
    assert text == f'{flops}, about 0.01 worker hours (from similar runs)'
    # The total time needs a rate for every run.
    assert 'hours' not in progress.total_cost([large, unknown], [similar])


@pytest.mark.ci
def test_exact_plan_has_the_costs_of_each_arm(sweep):
    finish(sweep.runs[0])
    first, second, *_, cost = progress.plan(sweep, is_exact=True).splitlines()[2:]
    parameters = cached_ledger(sweep.runs[0].config)['parameters']['total']
    flops = list(map(training_flops, sweep.runs))
    costs = f'{parameters:,} {console.cell(flops[0])}'
    assert first.split() == ['a', '1/1', *costs.split(), '0']
    assert second.split()[:2] == ['b', '0/1'] and float(second.split()[-1]) > 0
    left = sum(flops[1:])
    hours = left / flops[0] * 50 / 3600  # the first run took 50 seconds
    assert cost.startswith(
        f'cost: {console.cell(left)} FLOPs, about {hours:.2g} worker'
    )


def test_plan_estimates_the_flops_of_all_arms_from_the_base(
    sweep, monkeypatch, ledger_calls
):
    monkeypatch.setattr(progress, '_matmul_rate', lambda dtype: 1e9)
    monkeypatch.setattr('shutil.which', lambda name: None)
    *rows, _, cost = progress.plan(sweep).splitlines()[2:]
    assert ledger_calls == [sweep.runs[0].config]
    flops = training_flops(sweep.runs[0])
    assert [row.split()[2] == '-' for row in rows] == [False, True, True]
    assert {' '.join(row.split()[3:6]) for row in rows} == {console.cell(flops)}
    hours = f'at least {3 * flops / 1e9 / 3600:.2g} worker hours on this CPU'
    assert cost.startswith(f'cost: {console.cell(3 * flops)} FLOPs, {hours}')


@pytest.mark.slow
def test_plan_of_a_tuned_sweep_includes_the_runs_that_follow(folder, capsys):
    sweep = plan_small(folder, tune=TUNE)
    assert progress.number_of_runs(sweep) == 6 + 4
    arms = {run.arm: run for run in sweep.trials}
    total = sum(map(training_flops, arms.values())) * (3 + 2)
    cost = progress.plan(sweep, is_exact=True).splitlines()[-1]
    assert cost.startswith(f'cost: {console.cell(total)} FLOPs')
    shown = set()
    finish_trials(sweep)
    sweep = progress.say_ended(sweep, shown)
    assert sweep.runs and progress.number_of_runs(sweep) == 10
    for run in sweep.runs:
        finish(run)
    progress.say_ended(sweep, shown)
    counts = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert counts == [f'[{i}/10]' for i in range(1, 11)]


HEADS = {name: {'model.num_heads': int(name)} for name in '1248'}
TWO_SEEDS = dict.fromkeys(HEADS, 2)
PAIRS = [('1', '2'), ('4', '2'), ('8', '4'), ('1', '4')]  # of two bases


@pytest.mark.parametrize(
    ('fields', 'pairs', 'seeds', 'design'),
    [
        ({}, [(name, '1') for name in '248'], TWO_SEEDS, analysis.Design()),
        ({'contrasts': [('4', '2')]}, [('4', '2')], TWO_SEEDS, analysis.Design()),
        (
            {'contrasts': PAIRS, 'base_seeds': range(5)},
            PAIRS,
            TWO_SEEDS | {'2': 5, '4': 5},
            analysis.Design(blocks=False),
        ),
    ],
)
def test_power_is_that_of_the_declared_contrasts_and_seeds(
    folder, monkeypatch, fields, pairs, seeds, design
):
    pilot = {'2': {0: 4.0, 1: 4.1}, '4': {0: 4.4, 1: 4.9}}
    monkeypatch.setattr(planning, 'scores', lambda runs: pilot)
    sweep = plan_small(folder, arms=HEADS, base=pairs[0][1], **fields)
    least = analysis.minimum_detectable(pilot, pairs, seeds, design)
    assert f'difference {console.cell(least)} (80% power' in power.text(sweep)
    number = sum(seeds.values())
    assert f' {number} (4 arms × 2 seeds' in progress.heading(sweep)

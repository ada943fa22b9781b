"""Tests of the runs that a sweep plans from earlier results."""

import numpy as np
import pytest
from scipy import stats
from test_sweep import FAILED, fail, write
from test_sweep_schema import write_sweep

from experiments import storage
from experiments.command_line import console
from experiments.costs.ledger import ledger
from experiments.errors import UserError
from experiments.sweeps import planning, progress, workers
from experiments.training import loop

SMALL = {
    'model.d_model': 16,
    'model.num_heads': 2,
    'model.num_layers': 1,
    'train.steps': 100,
}
ARMS = {'base': {}, 'wide': {'model.d_ff': 32}}
RATE = 'optimizer.schedule.peak'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planned(folder, **changes):
    fields = {'overrides': SMALL, 'arms': ARMS, 'seeds': [0, 1]} | changes
    return planning.load(write_sweep(folder, **fields))


def finish(run, number):
    name, kind = run.measure.set, run.measure.score
    scores = dict(direction='en-de', sentences=4, bleu_signature='', chrf_signature='')
    scores |= dict.fromkeys(('loss', 'perplexity', 'accuracy', 'bleu', 'chrf'), 1.0)
    result = dict(step=100, parameters=9, train_seconds=50.0, tokens_per_second=3)
    of_set = {name: scores | {kind: number}}
    write(run.path, 'result.json', result | {'evaluations': of_set})


def by_value(run):
    """Returns a score that peaks at 3e-3 for `wide` and at 1e-3 for `base`."""
    best = 3e-3 if run.arm == 'wide' else 1e-3
    return 30 - 1e4 * abs(run.value - best) + run.seed


def peaks(runs):
    found = {run.arm: str(run.config.optimizer.schedule) for run in runs}
    return {arm: text.split('peak=')[1].split(',')[0] for arm, text in found.items()}


TUNE = {'field': RATE, 'values': [1e-3, 3e-3, 9e-3]}


def test_each_arm_is_reported_with_the_value_that_was_best_for_it(folder):
    sweep = planned(folder, tune=TUNE)
    assert len(sweep.trials) == 6 and not sweep.runs and not sweep.ended
    assert {run.config.evaluation.sets for run in sweep.trials} == {'val'}
    assert {run.seed for run in sweep.trials} == {100}
    assert str(sweep.trials[0].path) == 'runs/heads/base/0.001/seed=100'
    of_wide = [run for run in sweep.trials if run.arm == 'wide']
    for run in of_wide:
        finish(run, by_value(run))
    sweep = planning.plan(sweep)
    # One arm's values are known before the other's.
    assert {run.arm for run in sweep.runs} == {'wide'} and not sweep.ended
    for run in sweep.trials:
        finish(run, by_value(run))
    sweep = planning.plan(sweep)
    assert peaks(sweep.runs) == {'base': '0.001', 'wide': '0.003'}
    assert [run.seed for run in sweep.runs] == [0, 1, 0, 1]
    assert str(sweep.runs[3].path) == 'runs/heads/wide/0.003/seed=1'
    assert {run.config.evaluation.sets for run in sweep.runs} == {''}
    assert sweep.ended


def test_a_sweep_keeps_the_runs_that_it_has_planned(folder):
    sweep = planned(folder, tune=TUNE)
    for run in sweep.trials:
        finish(run, by_value(run))
    first = planning.plan(sweep)
    again = planning.plan(first)
    kept = zip(first.all_runs, again.all_runs, strict=True)
    assert first.runs and all(run is other for run, other in kept)


@pytest.mark.parametrize(
    ('tune', 'times'),
    [(TUNE, 2), (TUNE | {'field': 'model.num_layers', 'values': [1, 2, 3]}, 6)],
)
def test_costs_are_counted_once_for_all_rates_of_an_arm(
    folder, monkeypatch, tune, times
):
    sweep = planned(folder, tune=tune)
    counted = []
    book = ledger(sweep.trials[0].config)
    monkeypatch.setattr(
        'experiments.costs.ledger.ledger', lambda x: counted.append(x) or book
    )
    progress.plan(sweep, is_exact=True)
    assert len(counted) == times


def test_plan_of_a_tuned_sweep_includes_the_runs_that_follow(folder, capsys):
    sweep = planned(folder, tune=TUNE)
    assert progress.number_of_runs(sweep) == 6 + 4
    of_arms = {run.arm: run.config for run in sweep.trials}
    flops = {
        arm: float(ledger(config)['flops']['training'])
        for arm, config in of_arms.items()
    }
    more, cost = progress.plan(sweep, is_exact=True).splitlines()[-2:]
    total = sum(flops.values()) * (3 + 2)
    assert cost.startswith(f'cost: {console.cell(total)} FLOPs')
    assert more == '4 runs with the tuned values follow'
    said = set()
    for run in sweep.trials:
        finish(run, by_value(run))
        sweep = progress.say_ended(sweep, said)
    assert sweep.runs and progress.number_of_runs(sweep) == 10
    for run in sweep.runs:
        finish(run, 30.0)
    progress.say_ended(sweep, said)
    counts = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert counts == [f'[{i}/10]' for i in range(1, 11)]


def test_seeds_that_may_be_added_count_as_the_most(folder, capsys):
    sweep = planned(folder, seeds='until(half_width=1.0, most=9)')
    assert len(sweep.runs) == 2 * 3
    finish(sweep.runs[0], 1.0)
    progress.say_ended(sweep, set())
    assert capsys.readouterr().out.startswith('[1/at most 18] base, seed 0: ')


def test_tuning_by_a_loss_chooses_the_lowest(folder):
    sweep = planned(folder, tune=TUNE, measure='test loss')
    for run in sweep.trials:
        finish(run, run.value)
    assert set(peaks(planning.plan(sweep).runs).values()) == {'0.001'}


def test_a_value_whose_trial_has_no_score_is_not_chosen(folder):
    sweep = planned(folder, tune=TUNE | {'seeds': [7, 8]})
    for run in sweep.trials:
        if run.value == 3e-3 and run.seed == 8:
            fail(run.path, FAILED)
        elif run.arm == 'wide' and run.value == 9e-3:
            finish(run, 99.0)
        else:
            finish(run, 100 * run.value + run.seed)
    assert peaks(planning.plan(sweep).runs) == {'base': '0.009', 'wide': '0.009'}
    for run in sweep.trials:
        (run.path / 'result.json').unlink(missing_ok=True)
        fail(run.path, FAILED)
    sweep = planning.plan(sweep)
    assert not sweep.runs and sweep.ended == 'all seeds'  # and no arm has a value


def test_a_budget_draws_the_same_values_for_all_arms(folder):
    values = [i / 1000 for i in range(1, 9)]
    sweep = planned(folder, tune=TUNE | {'values': values, 'budget': 3})
    drawn = [[run.value for run in sweep.trials if run.arm == arm] for arm in ARMS]
    assert drawn[0] == drawn[1] == sorted(drawn[0]) and len(drawn[0]) == 3
    assert drawn[0] != values[:3]
    field = {'field': 'model.dropout', 'values': [0.0, 0.1]}
    assert [run.config.model.dropout for run in planned(folder, tune=field).trials] == [
        *(0.0, 0.1, 0.0, 0.1)
    ]


def test_runs_on_different_text_are_not_compared(folder):
    sweep = planned(folder, tune=TUNE)
    for run, text in zip(sweep.trials, 'aaaaab', strict=True):
        finish(run, by_value(run))
        result = storage.read_json(run.path / 'result.json')
        storage.write_json(
            run.path / 'result.json', result | {'training_text_sha256': text}
        )
    with pytest.raises(UserError, match='differ in their training text'):
        planned(folder, tune=TUNE)


def test_seeds_are_added_until_the_interval_is_narrow(folder):
    seeds = 'until(half_width=1.0, most=9)'
    sweep = planned(folder, seeds=seeds)
    assert len(sweep.runs) == 6 and not sweep.ended

    noise = [0.5, -0.5, 0, 0.5, -0.5, 0]
    for seeds_there in (3, 6):
        assert len(sweep.runs) == 2 * seeds_there and not sweep.ended
        for run in sweep.runs:
            finish(run, 10.0 + noise[run.seed] * (run.arm == 'wide'))
        sweep = planning.plan(sweep)
        # Of the paired differences, and a third of the error rate for each look.
        error = np.std(noise[:seeds_there], ddof=1) / np.sqrt(seeds_there)
        width = stats.t.isf(0.05 / 3 / 2, seeds_there - 1) * error
        assert (width <= 1.0) == bool(sweep.ended)
    assert len(sweep.runs) == 12
    assert float(sweep.ended.rpartition('± ')[2]) == pytest.approx(width, rel=1e-3)


def test_seeds_are_added_by_the_error_of_each_data_set(folder):
    scans = {name: {'data': f'scan(split="{name}")'} for name in ('simple', 'length')}
    factors = {'split': scans, 'model.residual': ['pre_norm', 'rezero']}
    sweep = planned(
        folder,
        arms=...,
        factors=factors,
        base='simple, pre_norm',
        seeds='until(half_width=1.0, most=3)',
    )
    noise = [0.5, -0.5, 0.1]
    for run in sweep.runs:
        score = 90.0 if run.arm.startswith('length') else 10.0
        finish(run, score + noise[run.seed] * (run.arm == 'length, rezero'))
    # On simple nothing varies; the paired differences on length have half of the rate.
    width = stats.t.isf(0.05 / 2 / 2, 2) * np.std(noise, ddof=1) / np.sqrt(3)
    ended = planning.plan(sweep).ended
    assert float(ended.rpartition('± ')[2]) == pytest.approx(width, rel=1e-3)


def test_seeds_end_if_all_of_them_would_not_suffice(folder):
    sweep = planned(folder, seeds='until(half_width=1.0, most=9)')
    for run in sweep.runs:
        finish(run, 10.0 + 9 * run.seed * (run.arm == 'wide'))
    sweep = planning.plan(sweep)
    assert len(sweep.runs) == 6
    assert sweep.ended.startswith('after 3 seeds, the widest 95% CI is ± ')
    assert 'and 9 seeds would give ± ' in sweep.ended


def test_seeds_end_without_an_interval(folder):
    sweep = planned(folder, tune=TUNE, seeds='until(half_width=1.0, most=9)')
    for run in sweep.trials:
        if run.arm == 'base':
            finish(run, by_value(run))
        else:
            fail(run.path, FAILED)
    sweep = planning.plan(sweep)
    assert {run.arm for run in sweep.runs} == {'base'} and not sweep.ended
    for run in sweep.runs:
        finish(run, 10.0 + run.seed)
    assert planning.plan(sweep).ended == 'no confidence interval after 3 seeds'


def test_arms_get_equally_many_tokens_or_flops(folder):
    arms = {
        'base': {},
        'large batches': {'batch.tokens': 16_384},
        'deep': {'model.num_layers': 2},
    }
    by_equal = {}
    for equal in ('steps', 'tokens', 'flops'):
        runs = planned(folder, arms=arms, equal=equal, seeds=[0]).runs
        by_equal[equal] = [run.config.train.steps for run in runs]
    books = [ledger(run.config) for run in runs]
    assert by_equal['steps'] == [100, 100, 100]
    tokens = [run.config.batch.tokens for run in runs]
    assert by_equal['tokens'] == [100, round(100 * tokens[0] / 16_384), 100]
    steps = by_equal['flops']
    spent = [
        x['batch']['tokens'] * x['flops_per_token']['total'] * n
        for x, n in zip(books, steps, strict=True)
    ]
    for cost, number in zip(spent, steps, strict=True):
        assert cost == pytest.approx(spent[0], rel=0.51 / number)
    assert steps[2] < 100


def test_every_combination_of_levels_is_an_arm(folder):
    factors = {
        'depth': {'two': {'model.num_layers': 2}, 'six': {'model': {'num_layers': 6}}},
        'model.residual': ['pre_norm', 'rezero'],
    }
    sweep = planned(folder, arms=..., factors=factors, base='two, pre_norm')
    assert sweep.arms == {
        'two, pre_norm': {'model.num_layers': 2, 'model.residual': 'pre_norm'},
        'two, rezero': {'model.num_layers': 2, 'model.residual': 'rezero'},
        'six, pre_norm': {'model.num_layers': 6, 'model.residual': 'pre_norm'},
        'six, rezero': {'model.num_layers': 6, 'model.residual': 'rezero'},
    }
    assert sweep.levels['six, rezero'] == {'depth': 'six', 'model.residual': 'rezero'}


def test_worker_trains_the_runs_that_results_ask_for(folder, monkeypatch):
    sweep = planned(folder, tune=TUNE)
    made = []

    def run(config, path, overrides, screen, program_cache):
        plan = planning.plan(sweep)
        (this,) = [x for x in (*plan.trials, *plan.runs) if x.path == path]
        made.append(str(this))
        finish(this, by_value(this))

    monkeypatch.setattr(loop, 'run', run)
    workers.make_all(sweep, 0, 1)
    assert made[6:] == [
        *('base, 0.001, seed 0', 'base, 0.001, seed 1'),
        *('wide, 0.003, seed 0', 'wide, 0.003, seed 1'),
    ]
    sweep = planning.plan(sweep)
    assert all(map(planning.has_ended, (*sweep.trials, *sweep.runs))) and sweep.ended


def test_a_worker_adds_seeds_until_results_are_enough(folder, monkeypatch):
    sweep = planned(folder, seeds='until(half_width=1.0, most=9)')
    noise = [0.5, -0.5, 0, 0.5, -0.5, 0]  # too much for three seeds
    made = []

    def run(config, path, overrides, screen, program_cache):
        (this,) = [x for x in planning.plan(sweep).runs if x.path == path]
        made.append(this.seed)
        finish(this, 10.0 + noise[this.seed] * (this.arm == 'wide'))

    monkeypatch.setattr(loop, 'run', run)
    workers.make_all(sweep, 0, 1)
    assert sorted(made) == sorted(2 * [0, 1, 2, 3, 4, 5])

"""Tests of the runs that a sweep plans from earlier results."""

import numpy as np
import pytest
from planned_sweeps import TUNE, data_sets, fail, finish, finish_trials, plan_small
from scipy import stats

from experiments import storage
from experiments.costs.ledger import ledger
from experiments.errors import UserError
from experiments.sweeps import planning, workers
from experiments.training import loop

UNTIL = 'until(half_width=1.0, most=9)'
NOISE = [0.5, -0.5, 0, 0.5, -0.5, 0]  # of each seed; too much for three seeds


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def peaks(runs):
    schedules = {run.arm: str(run.config.optimizer.schedule) for run in runs}
    return {x: text.split('peak=')[1].split(',')[0] for x, text in schedules.items()}


def half_width(differences, looks):
    """Returns that of the paired differences, with a share of the error rate."""
    number = len(differences)
    error = np.std(differences, ddof=1) / np.sqrt(number)
    return stats.t.isf(0.05 / looks / 2, number - 1) * error


def test_each_arm_is_reported_with_its_best_tuned_value(folder):
    sweep = plan_small(folder, tune=TUNE)
    assert len(sweep.trials) == 6 and not sweep.runs and not sweep.ended
    assert {run.config.evaluation.sets for run in sweep.trials} == {'val'}
    assert {run.seed for run in sweep.trials} == {100}
    assert str(sweep.trials[0].path) == 'runs/heads/base/0.001/seed=100'
    for run in sweep.trials[3:]:
        finish(run, -abs(run.value - 3e-3))
    sweep = planning.plan(sweep)
    # The values of `wide` are known before those of the base.
    assert {run.arm for run in sweep.runs} == {'wide'} and not sweep.ended
    finish_trials(sweep)
    sweep = planning.plan(sweep)
    assert peaks(sweep.runs) == {'base': '0.001', 'wide': '0.003'}
    assert [run.seed for run in sweep.runs] == [0, 1, 0, 1]
    assert str(sweep.runs[3].path) == 'runs/heads/wide/0.003/seed=1'
    assert {run.config.evaluation.sets for run in sweep.runs} == {''}
    assert sweep.ended
    again = planning.plan(sweep)
    pairs = zip(sweep.all_runs, again.all_runs, strict=True)
    assert all(run is other for run, other in pairs)


def test_tuning_by_a_loss_chooses_the_lowest(folder):
    sweep = plan_small(folder, tune=TUNE, measure='test loss')
    for run in sweep.trials:
        finish(run, run.value)
    assert set(peaks(planning.plan(sweep).runs).values()) == {'0.001'}


def test_value_with_a_failed_trial_is_not_chosen(folder):
    sweep = plan_small(folder, tune=TUNE | {'seeds': [7, 8]})
    for run in sweep.trials:
        if run.value == 3e-3 and run.seed == 8:
            fail(run)
        else:
            finish(run, 100 * (run.value == 3e-3) + 10 * run.value)
    assert peaks(planning.plan(sweep).runs) == {'base': '0.009', 'wide': '0.009'}
    for run in sweep.trials:
        (run.path / 'result.json').unlink(missing_ok=True)
        fail(run)
    sweep = planning.plan(sweep)
    assert not sweep.runs and sweep.ended == 'all seeds'  # and no arm has a value


def test_budget_draws_the_same_values_for_all_arms(folder):
    values = [i / 1000 for i in range(1, 9)]
    sweep = plan_small(folder, tune=TUNE | {'values': values, 'budget': 3})
    base, wide = (
        [run.value for run in sweep.trials if run.arm == arm] for arm in sweep.arms
    )
    assert base == wide == sorted(base) and len(base) == 3
    assert base != values[:3]


def test_runs_on_different_training_text_are_rejected(folder):
    sweep = plan_small(folder, tune=TUNE)
    finish_trials(sweep)
    for run, text in zip(sweep.trials, 'aaaaab', strict=True):
        file = run.path / 'result.json'
        result = storage.read_json(file) | {'training_text_sha256': text}
        storage.write_json(file, result)
    with pytest.raises(UserError, match='training text'):
        plan_small(folder, tune=TUNE)


def test_seeds_are_added_until_the_interval_is_narrow(folder):
    sweep = plan_small(folder, seeds=UNTIL)
    for number in (3, 6):
        assert len(sweep.runs) == 2 * number and not sweep.ended
        for run in sweep.runs:
            finish(run, 10.0 + NOISE[run.seed] * (run.arm == 'wide'))
        sweep = planning.plan(sweep)
        width = half_width(NOISE[:number], looks=3)
        assert (width <= 1.0) == bool(sweep.ended)
    assert len(sweep.runs) == 12
    assert float(sweep.ended.rpartition('± ')[2]) == pytest.approx(width, rel=1e-3)


def test_seeds_are_added_by_the_error_of_each_data_set(folder):
    factors = data_sets('simple', 'length')
    factors |= {'model.residual': ['pre_norm', 'rezero']}
    fields = dict(arms=..., factors=factors, base='simple, pre_norm')
    sweep = plan_small(folder, seeds='until(half_width=1.0, most=3)', **fields)
    for run in sweep.runs:
        score = 90.0 if run.arm.startswith('length') else 10.0
        finish(run, score + NOISE[run.seed] * (run.arm == 'length, rezero'))
    # Nothing varies on `simple`; `length` has half of the error rate.
    width = half_width(NOISE[:3], looks=2)
    ended = planning.plan(sweep).ended
    assert float(ended.rpartition('± ')[2]) == pytest.approx(width, rel=1e-3)


def test_seeds_end_if_all_of_them_would_not_suffice(folder):
    sweep = plan_small(folder, seeds=UNTIL)
    for run in sweep.runs:
        finish(run, 10.0 + 9 * run.seed * (run.arm == 'wide'))
    sweep = planning.plan(sweep)
    assert len(sweep.runs) == 6
    assert sweep.ended.startswith('after 3 seeds') and '9 seeds would' in sweep.ended


@pytest.mark.ci
def test_arms_get_equally_many_tokens_or_flops(folder, monkeypatch):
    books = {}

    def cached_ledger(config):
        # Costs of a token don't depend on the number of steps.
        key = str((config.model, config.batch))
        books[key] = books.get(key) or ledger(config)
        return books[key]

    monkeypatch.setattr('experiments.costs.ledger.ledger', cached_ledger)
    arms = {
        'base': {},
        'large batches': {'batch.tokens': 16_384},
        'deep': {'model.num_layers': 2},
    }
    steps = {}
    for equal in ('steps', 'tokens', 'flops'):
        runs = plan_small(folder, arms=arms, equal=equal, seeds=[0]).runs
        steps[equal] = [run.config.train.steps for run in runs]
    assert steps['steps'] == [100, 100, 100]
    tokens = runs[0].config.batch.tokens
    assert steps['tokens'] == [100, round(100 * tokens / 16_384), 100]
    flops = []
    for run, number in zip(runs, steps['flops'], strict=True):
        book = cached_ledger(run.config)
        per_step = book['batch']['tokens'] * book['flops_per_token']['total']
        flops.append(per_step * number)
    for total, number in zip(flops, steps['flops'], strict=True):
        assert total == pytest.approx(flops[0], rel=0.51 / number)
    assert steps['flops'][2] < 100


def test_worker_adds_seeds_until_intervals_are_narrow(folder, monkeypatch):
    sweep = plan_small(folder, seeds=UNTIL)
    seeds = []

    def run(config, path, overrides, screen, program_cache):
        (this,) = [x for x in planning.plan(sweep).all_runs if x.path == path]
        seeds.append(this.seed)
        finish(this, 10.0 + NOISE[this.seed] * (this.arm == 'wide'))

    monkeypatch.setattr(loop, 'run', run)
    workers.make_all(sweep, 0, 1)
    assert sorted(seeds) == sorted(2 * [0, 1, 2, 3, 4, 5])

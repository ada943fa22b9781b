"""Tests of differences at equal time on runs whose learning curve is known."""

import dataclasses
import math

import made_runs
import pytest

from experiments.evaluation.measure import Measure
from experiments.reports import equal_time
from experiments.runs import reading
from experiments.sweeps.schema import PlannedRun, Sweep

LOSS = Measure.parse('test loss')
CPU = {'devices': {'cpu': 1}, 'processor': {'name': 'A Processor', 'vectors': []}}
# Steps of the base → seconds. Its loss is 5 − log₂(seconds).
SECONDS = {'base': 8.0, 'base, long': 32.0, 'slow': 16.0, 'fast': 8.0}
ARMS = {
    'base': {},
    'base, long': {'train.steps': 80, 'evaluation.every': 80},
    'slow': {'model.num_heads': 2},
    'fast': {'model.num_heads': 1},
}


def loss_of_base(seconds):
    return 5 - math.log2(seconds)


def make_study(folder, losses, seeds=(0, 1), environment=CPU):
    """Returns a study of `ARMS`, in which seeds shift the loss by ± 0.1."""
    planned = []
    for arm in ARMS:
        for seed in seeds:
            path = folder / f'{arm}_{seed}'.replace(', ', '_').replace(' ', '_')
            loss = losses[arm] + (0.1 if seed % 2 else -0.1)
            made_runs.make(
                path,
                bleu=1.0,
                environment=environment,
                result={'train_cpu_seconds': SECONDS[arm], 'train_seconds': 99.0},
                train__seed=seed,
            )
            result = reading.storage.read_json(path / 'result.json')
            result['evaluations']['test']['loss'] = loss
            reading.storage.write_json(path / 'result.json', result)
            planned.append(PlannedRun(arm, seed, {}, path, None, LOSS))
    sweep = Sweep(
        name='time',
        question='',
        source='',
        config='',
        base='base',
        measure=LOSS,
        arms=ARMS,
        seeds=seeds,
        contrasts=(('slow', 'base'), ('fast', 'base')),
        runs=tuple(planned),
    )
    return made_runs.study([run.path for run in planned], sweep, measure='test loss')


LOSSES = {
    'base': loss_of_base(8),
    'base, long': loss_of_base(32),
    'slow': loss_of_base(16) + 0.5,  # better per step, and worse at equal time
    'fast': loss_of_base(8) - 0.5,
}


def test_slow_arm_is_compared_with_the_base_after_its_time(tmp_path):
    slow, fast = equal_time.differences(make_study(tmp_path, LOSSES))
    assert (slow.arm, slow.base) == ('slow', 'base')
    assert slow.ratio == pytest.approx(2)
    assert slow.effect == pytest.approx(0.5)
    assert fast.ratio == pytest.approx(1)
    assert fast.effect == pytest.approx(-0.5)
    assert slow.low < slow.effect < slow.high


def test_interval_has_the_errors_of_the_arm_and_of_the_curve(tmp_path):
    slow, _ = equal_time.differences(make_study(tmp_path, LOSSES))
    variance = 2 * 0.1**2  # of two seeds at ± 0.1
    # The arm's mean, and the mean of two points of the curve.
    error = math.sqrt(variance * (1 / 2 + 0.25 / 2 + 0.25 / 2))
    t = 3.4954  # 1.25% of Student's t with 4 degrees of freedom above it
    assert (slow.high - slow.low) / 2 == pytest.approx(t * error, rel=1e-3)


def test_table_has_both_differences_and_names_the_machine(tmp_path):
    table = equal_time.table(make_study(tmp_path, LOSSES))
    (row, _) = table.rows
    per_step, at_equal_time = row[3:5]
    assert per_step == pytest.approx(-0.5)
    assert at_equal_time == pytest.approx(0.5)
    assert 'on CPU cores' in table.note
    assert 'A Processor' in table.note


def test_times_by_the_clock_are_used_on_other_devices(tmp_path):
    gpu = CPU | {'devices': {'NVIDIA H200': 1}}
    study = make_study(tmp_path, LOSSES, environment=gpu)
    assert equal_time._times(study, study.arms[0]) == [99.0, 99.0]


def test_runs_of_equal_time_give_no_curve(tmp_path, monkeypatch):
    monkeypatch.setitem(SECONDS, 'base, long', SECONDS['base'])
    study = make_study(tmp_path, dict.fromkeys(ARMS, 2.0))
    assert equal_time.differences(study) == []


def test_base_without_longer_runs_has_no_equal_time(tmp_path):
    study = make_study(tmp_path, LOSSES)
    arms = tuple(arm for arm in study.arms if arm.name != 'base, long')
    assert equal_time.table(study._replace(arms=arms)) is None
    other = dataclasses.replace(study.sweep, contrasts=())
    assert equal_time.table(study._replace(sweep=other)) is None

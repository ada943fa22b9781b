"""Tests of differences at equal time on runs whose learning curve is known."""

import dataclasses
import math

import pytest
import synthetic_runs

from experiments.evaluation.measure import Measure
from experiments.reports import equal_time
from experiments.runs import reading
from experiments.sweeps.schema import PlannedRun, Sweep

LOSS = Measure.parse('test loss')
CPU = {'devices': {'cpu': 1}, 'processor': {'name': 'A Processor', 'vectors': []}}
SECONDS = {'base': 8.0, 'base, long': 32.0, 'slow': 16.0, 'fast': 8.0}
ARMS = {
    'base': {},
    'base, long': {'train.steps': 80, 'evaluation.every': 80},
    'slow': {'model.num_heads': 2},
    'fast': {'model.num_heads': 1},
}
# The loss of the base is 5 − log₂(seconds).
LOSSES = {
    'base': 5 - math.log2(8),
    'base, long': 5 - math.log2(32),
    'slow': 5 - math.log2(16) + 0.5,  # better per step, and worse at equal time
    'fast': 5 - math.log2(8) - 0.5,
}


def make_study(folder, environment=CPU):
    """Returns a study of `ARMS`, in which seeds shift the loss by ± 0.1."""
    planned = []
    for arm in ARMS:
        for seed, shift in enumerate((-0.1, 0.1)):
            path = folder / f'{arm}_{seed}'.replace(', ', '_')
            result = {'train_cpu_seconds': SECONDS[arm], 'train_seconds': 99.0}
            times = dict(result=result, environment=environment)
            synthetic_runs.make(path, bleu=1.0, train__seed=seed, **times)
            result = reading.storage.read_json(path / 'result.json')
            result['evaluations']['test']['loss'] = LOSSES[arm] + shift
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
        seeds=(0, 1),
        contrasts=(('slow', 'base'), ('fast', 'base')),
        runs=tuple(planned),
    )
    return synthetic_runs.study(
        [run.path for run in planned], sweep, measure='test loss'
    )


def test_arm_is_compared_with_the_base_at_the_time_of_the_arm(tmp_path):
    study = make_study(tmp_path)
    slow, fast = equal_time.differences(study)
    assert (slow.arm, slow.base) == ('slow', 'base')
    assert (slow.ratio, slow.effect) == pytest.approx((2, 0.5))
    assert (fast.ratio, fast.effect) == pytest.approx((1, -0.5))
    variance = 2 * 0.1**2  # of two seeds at ± 0.1
    # The arm's mean, and the mean of two points of the curve.
    error = math.sqrt(variance * (1 / 2 + 0.25 / 2 + 0.25 / 2))
    t = 3.4954  # 1.25% of Student's t with 4 degrees of freedom are above
    assert slow.low < slow.effect < slow.high
    assert (slow.high - slow.low) / 2 == pytest.approx(t * error, rel=1e-3)
    table = equal_time.table(study)
    (row, _) = table.rows
    assert row[3:5] == pytest.approx((-0.5, 0.5))  # per step, and at equal time
    assert 'on CPU cores' in table.note and 'A Processor' in table.note


def test_times_by_the_clock_are_used_on_other_devices(tmp_path):
    study = make_study(tmp_path, CPU | {'devices': {'NVIDIA H200': 1}})
    assert equal_time._times(study, study.arms[0]) == [99.0, 99.0]


def test_equal_time_needs_longer_runs_of_the_base_and_contrasts(tmp_path, monkeypatch):
    study = make_study(tmp_path / 'all')
    arms = tuple(arm for arm in study.arms if arm.name != 'base, long')
    assert equal_time.table(study._replace(arms=arms)) is None
    other = dataclasses.replace(study.sweep, contrasts=())
    assert equal_time.table(study._replace(sweep=other)) is None
    monkeypatch.setitem(SECONDS, 'base, long', SECONDS['base'])
    assert equal_time.differences(make_study(tmp_path / 'equal')) == []

"""Tests of the change of a contrast between two sweeps."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from experiments import report
from experiments.errors import UserError
from experiments.reports.interactions import interactions
from experiments.sweeps.analysis import Contrast, Design, compare

RESULTS = Path(__file__).parents[3] / 'results'


def contrasts(scores):
    return compare(scores, base='base', design=Design(blocks=False))


def test_change_is_the_difference_of_differences():
    first = contrasts({'base': {0: 1.0, 1: 2.0}, 'rotary': {0: 3.0, 1: 4.5}})
    second = contrasts({'base': {0: 5.0, 1: 5.5}, 'rotary': {0: 5.0, 1: 6.0}})
    (change,) = interactions(first, second)
    assert (change.arm, change.base) == ('rotary', 'base')
    assert (change.first, change.second) == pytest.approx((2.25, 0.25))
    assert change.effect == pytest.approx(-2.0)
    assert change.low < change.effect < change.high
    # Contrasts of only one sweep are left out.
    renamed = [x._replace(arm='other') for x in first]
    assert interactions(first, renamed) == []


def test_standard_error_and_freedom_match_welch():
    """Two sweeps, whose base never varies, are the two groups of Welch's t test."""
    random = np.random.default_rng(0)
    groups = random.normal(size=(2, 6)) * np.array([[1.0], [3.0]])
    sweeps = []
    for group in groups:
        base = dict.fromkeys(range(6), 0.0)
        (contrast,) = contrasts({'base': base, 'rotary': dict(enumerate(group))})
        error = float(np.std(group, ddof=1)) / np.sqrt(6)
        sweeps.append([contrast._replace(error=error, freedom=5)])
    (change,) = interactions(*sweeps)
    expected = stats.ttest_ind(groups[1], groups[0], equal_var=False)
    assert change.p == pytest.approx(expected.pvalue)
    assert change.low == pytest.approx(expected.confidence_interval().low)


def test_equal_effects_give_a_significant_change_in_one_of_twenty():
    random = np.random.default_rng(1)
    alarms = []
    for _ in range(800):
        sweeps = []
        for sd in (1.0, 4.0):
            base, arm = sd * random.normal(size=(2, 4))
            error = np.sqrt((base.var(ddof=1) + arm.var(ddof=1)) / 4)
            effect = arm.mean() - base.mean()
            sweeps.append([Contrast('arm', 'base', effect, error=error, freedom=6)])
        alarms.append(interactions(*sweeps)[0].p < 0.05)
    assert abs(np.mean(alarms) - 0.05) < 3 * np.sqrt(0.05 * 0.95 / 800)


def test_command_compares_two_reports(command):
    folders = [RESULTS / name for name in ('modern', 'modern_longer')]
    flags = [f'--recompute={folders[0]}', f'--other={folders[1]}']
    out = command(report, *flags).out
    (row,) = [line for line in out.splitlines() if line.startswith('sink ')][-1:]
    # −4.06 after 600 steps, 0.28 after 3,000.
    assert '−4.0' in row and '4.3' in row
    with pytest.raises(UserError, match='--other=.*: has no contrast'):
        command(report, f'--recompute={RESULTS}/modern', f'--other={RESULTS}/depth')
    with pytest.raises(UserError, match='--other: has no effect'):
        command(report, f'--other={RESULTS}/modern')

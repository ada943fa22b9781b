"""Tests of the change of a contrast between two sweeps."""

import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from experiments import report
from experiments.errors import UserError
from experiments.reports.interactions import interactions
from experiments.sweeps.analysis import Contrast, Design, compare

UNBLOCKED = Design(blocks=False)


def drawn_scores(random, effect, sd, seeds=4):
    return {
        arm: dict(enumerate((level + sd * random.normal(size=seeds)).tolist()))
        for arm, level in (('base', 10.0), ('rotary', 10.0 + effect))
    }


def contrasts(scores):
    return compare(scores, base='base', design=UNBLOCKED)


def test_change_is_the_difference_of_differences():
    first = contrasts({'base': {0: 1.0, 1: 2.0}, 'rotary': {0: 3.0, 1: 4.5}})
    second = contrasts({'base': {0: 5.0, 1: 5.5}, 'rotary': {0: 5.0, 1: 6.0}})
    (found,) = interactions(first, second)
    assert (found.arm, found.base) == ('rotary', 'base')
    assert (found.first, found.second) == (pytest.approx(2.25), pytest.approx(0.25))
    assert found.effect == pytest.approx(-2.0)
    assert found.low < found.effect < found.high


def test_standard_error_and_freedom_are_those_of_welch():
    """Two sweeps, whose base never varies, are the two groups of Welch's t test."""
    random = np.random.default_rng(0)
    groups = random.normal(size=(2, 6)) * np.array([[1.0], [3.0]])
    found = []
    for group in groups:
        scores = {
            'base': dict.fromkeys(range(6), 0.0),
            'rotary': dict(enumerate(group)),
        }
        (contrast,) = contrasts(scores)
        error = float(np.std(group, ddof=1)) / np.sqrt(6)
        found.append([contrast._replace(error=error, freedom=5)])
    (change,) = interactions(*found)
    expected = stats.ttest_ind(groups[1], groups[0], equal_var=False)
    assert change.p == pytest.approx(expected.pvalue)
    assert change.low == pytest.approx(expected.confidence_interval().low)


def test_equal_effects_give_a_significant_change_in_one_of_twenty():
    random = np.random.default_rng(1)
    alarms = []
    for _ in range(2000):
        sweeps = []
        for sd in (1.0, 4.0):
            base, arm = sd * random.normal(size=(2, 4))
            error = np.sqrt((base.var(ddof=1) + arm.var(ddof=1)) / 4)
            effect = arm.mean() - base.mean()
            sweeps.append([Contrast('arm', 'base', effect, error=error, freedom=6)])
        alarms.append(interactions(*sweeps)[0].p < 0.05)
    assert abs(np.mean(alarms) - 0.05) < 3 * np.sqrt(0.05 * 0.95 / 2000)


def test_contrasts_of_only_one_sweep_are_left_out():
    random = np.random.default_rng(2)
    first = contrasts(drawn_scores(random, 1.0, 1.0))
    renamed = [x._replace(arm='other') for x in first]
    assert interactions(first, renamed) == []


RESULTS = Path(__file__).parents[3] / 'results'


def run_report(monkeypatch, *flags):
    monkeypatch.setattr(sys, 'argv', ['report', *flags])
    report.main()


def test_command_compares_two_reports(monkeypatch, capsys):
    folders = [RESULTS / name for name in ('modern', 'modern_longer')]
    flags = [f'--recompute={folders[0]}', f'--other={folders[1]}']
    run_report(monkeypatch, *flags)
    out = capsys.readouterr().out
    (row,) = [line for line in out.splitlines() if line.startswith('sink ')][-1:]
    # −4.06 after 600 steps, 0.28 after 3,000.
    assert '−4.0' in row
    assert '4.3' in row


def test_command_rejects_reports_without_a_common_contrast(monkeypatch):
    flags = [f'--recompute={RESULTS}/modern', f'--other={RESULTS}/depth']
    with pytest.raises(UserError, match='--other=.*: has no contrast'):
        run_report(monkeypatch, *flags)
    with pytest.raises(UserError, match='--other: has no effect'):
        run_report(monkeypatch, f'--other={RESULTS}/modern')

"""Tests of trends and forecasts on effects with a known trend."""

import dataclasses
import math

import numpy as np
import pytest

from experiments.errors import UserError
from experiments.evaluation.measure import Measure
from experiments.reports import forecasts
from experiments.reports.forecasts import fit
from experiments.sweeps import schema
from experiments.sweeps.schema import Sweep

WIDTHS, STEPS = (32, 64, 128), (600, 1800, 5400)
CELLS = [(w, s) for w in WIDTHS for s in STEPS]
HELD_OUT = CELLS[-1]


def true_effect(cell):
    return -0.2 + 0.03 * math.log2(cell[0]) - 0.01 * math.log2(cell[1])


def drawn_effects(random, error):
    return {cell: true_effect(cell) + error * random.normal() for cell in CELLS[:-1]}


def test_exact_trend_is_found_and_extended():
    trend = fit({cell: true_effect(cell) for cell in CELLS[:-1]}, HELD_OUT)
    assert trend.slopes == pytest.approx((0.03, -0.01))
    assert trend.forecast == pytest.approx(true_effect(HELD_OUT))
    assert trend.low == pytest.approx(trend.high)


def test_slopes_and_errors_match_the_covariance_of_polyfit():
    """With one factor, the fit is a straight line, as that of `np.polyfit`."""
    random = np.random.default_rng(0)
    x = np.arange(1.0, 7)
    y = random.normal(size=6)
    effects = {(2.0**a,): b for a, b in zip(x, y, strict=True)}
    trend = fit(effects, (2.0**9,))
    (slope, start), covariance = np.polyfit(x, y, 1, cov=True)
    assert trend.slopes == pytest.approx([slope])
    assert trend.errors == pytest.approx([math.sqrt(covariance[0, 0])])
    assert trend.forecast == pytest.approx(start + 9 * slope)


def test_intervals_cover_nine_of_ten_observations():
    random = np.random.default_rng(1)
    covered = []
    for _ in range(500):
        trend = fit(drawn_effects(random, 0.02), HELD_OUT)
        observed = true_effect(HELD_OUT) + 0.02 * random.normal()
        covered.append(trend.low <= observed <= trend.high)
    assert abs(np.mean(covered) - 0.9) < 3 * math.sqrt(0.9 * 0.1 / 500)


def test_too_few_cells_give_no_trend():
    effects = {cell: 0.0 for cell in CELLS[:3]}  # one width
    assert fit(effects, HELD_OUT) is None
    assert fit({(32, 600): 0.1}, HELD_OUT) is None


def test_forecast_is_informative_unless_it_reaches_further_than_the_effects():
    random = np.random.default_rng(2)
    near = drawn_effects(random, 0.001)
    assert forecasts.is_informative(fit(near, HELD_OUT), near)
    noise = {cell: random.normal() for cell in CELLS[:-1]}
    trend = fit(noise, HELD_OUT)
    assert trend.low < 0 < trend.high
    assert not forecasts.is_informative(trend._replace(low=-9, high=9), noise)


def reach_sweep():
    """Returns a sweep of one component over widths and steps."""
    levels = {
        f'{part}, {w}, {s}': {'part': part, 'width': str(w), 'steps': str(s)}
        for part in ('base', 'rotary')
        for w, s in CELLS
    }
    pairs = tuple((f'rotary, {w}, {s}', f'base, {w}, {s}') for w, s in CELLS)
    return Sweep(
        name='reach',
        question='',
        source='',
        config='',
        base='base, 32, 600',
        measure=Measure.parse('test loss'),
        arms=dict.fromkeys(levels, {}),
        levels=levels,
        contrasts=pairs,
        forecast={'width': '128', 'steps': '5400'},
    )


def test_effects_are_ratios_of_losses_within_a_cell():
    sweep = reach_sweep()
    scores = {}
    for w, s in CELLS:
        scores[f'base, {w}, {s}'] = {0: 1.9, 1: 2.1}
        loss = math.exp(true_effect((w, s)))
        scores[f'rotary, {w}, {s}'] = {0: 1.9 * loss, 1: 2.1 * loss}
    (outlook,) = forecasts.outlooks(scores, sweep)
    assert outlook.arm == 'rotary'
    assert set(outlook.effects) == set(CELLS[:-1])
    assert outlook.observed == pytest.approx(true_effect(HELD_OUT))
    assert outlook.trend.forecast == pytest.approx(true_effect(HELD_OUT))


def test_cell_that_was_not_run_is_forecast():
    sweep = reach_sweep()
    scores = {
        f'{part}, {w}, {s}': {0: math.exp(true_effect((w, s)) * (part == 'rotary'))}
        for part in ('base', 'rotary')
        for w, s in CELLS[:-1]
    }
    (outlook,) = forecasts.outlooks(scores, sweep)
    assert outlook.observed is None
    assert outlook.trend.forecast == pytest.approx(true_effect(HELD_OUT))


@pytest.mark.parametrize(
    ('forecast', 'message'),
    [
        ({'width': '256'}, "forecast: width='256' is not a level of a factor"),
        ({'depth': '2'}, 'forecast: depth=.* is not a level of a factor'),
        ({'part': 'rotary'}, 'the level .* of part must be a positive number'),
    ],
)
def test_invalid_forecast_is_rejected(forecast, message):
    sweep = reach_sweep()
    with pytest.raises(UserError, match=message):
        schema._check_forecast(dataclasses.replace(sweep, forecast=forecast))

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

CELLS = [(width, steps) for width in (32, 64, 128) for steps in (600, 1800, 5400)]
HELD_OUT = CELLS[-1]


def true_effect(cell):
    return -0.2 + 0.03 * math.log2(cell[0]) - 0.01 * math.log2(cell[1])


def draw_effects(random, error):
    return {cell: true_effect(cell) + error * random.normal() for cell in CELLS[:-1]}


def test_exact_trend_is_found_and_extended():
    trend = fit({cell: true_effect(cell) for cell in CELLS[:-1]}, HELD_OUT)
    assert trend.slopes == pytest.approx((0.03, -0.01))
    assert trend.forecast == pytest.approx(true_effect(HELD_OUT))
    assert trend.low == pytest.approx(trend.high)
    # Two cells, or cells of one width, are too few.
    assert fit(dict.fromkeys(CELLS[:3], 0.0), HELD_OUT) is None
    assert fit({(32, 600): 0.1}, HELD_OUT) is None


def test_slopes_and_errors_match_the_covariance_of_polyfit():
    random = np.random.default_rng(0)
    x = np.arange(1.0, 7)
    y = random.normal(size=6)
    trend = fit({(2.0**a,): b for a, b in zip(x, y, strict=True)}, (2.0**9,))
    (slope, start), covariance = np.polyfit(x, y, 1, cov=True)
    assert trend.slopes == pytest.approx([slope])
    assert trend.errors == pytest.approx([math.sqrt(covariance[0, 0])])
    assert trend.forecast == pytest.approx(start + 9 * slope)


def test_intervals_cover_nine_of_ten_observations():
    random = np.random.default_rng(1)
    covered = []
    for _ in range(500):
        trend = fit(draw_effects(random, 0.02), HELD_OUT)
        observed = true_effect(HELD_OUT) + 0.02 * random.normal()
        covered.append(trend.low <= observed <= trend.high)
    assert abs(np.mean(covered) - 0.9) < 3 * math.sqrt(0.9 * 0.1 / 500)


def test_forecast_is_informative_unless_it_reaches_further_than_the_effects():
    random = np.random.default_rng(2)
    near = draw_effects(random, 0.001)
    assert forecasts.is_informative(fit(near, HELD_OUT), near)
    noise = {cell: random.normal() for cell in CELLS[:-1]}
    trend = fit(noise, HELD_OUT)
    assert trend.low < 0 < trend.high
    assert not forecasts.is_informative(trend._replace(low=-9, high=9), noise)


@pytest.fixture
def sweep():
    """Returns a sweep of one component over widths and steps."""
    levels = {
        f'{part}, {w}, {s}': {'part': part, 'width': str(w), 'steps': str(s)}
        for part in ('base', 'rotary')
        for w, s in CELLS
    }
    return Sweep(
        name='reach',
        question='',
        source='',
        config='',
        base='base, 32, 600',
        measure=Measure.parse('test loss'),
        arms=dict.fromkeys(levels, {}),
        levels=levels,
        contrasts=tuple((f'rotary, {w}, {s}', f'base, {w}, {s}') for w, s in CELLS),
        forecast={'width': '128', 'steps': '5400'},
    )


def test_effects_are_ratios_of_losses_and_the_last_cell_may_be_missing(sweep):
    scores = {}
    for w, s in CELLS:
        ratio = math.exp(true_effect((w, s)))
        scores[f'base, {w}, {s}'] = {0: 1.9, 1: 2.1}
        scores[f'rotary, {w}, {s}'] = {0: 1.9 * ratio, 1: 2.1 * ratio}
    (outlook,) = forecasts.outlooks(scores, sweep)
    assert outlook.arm == 'rotary'
    assert set(outlook.effects) == set(CELLS[:-1])
    expected = pytest.approx(true_effect(HELD_OUT))
    assert outlook.observed == expected and outlook.trend.forecast == expected
    for part in ('base', 'rotary'):
        del scores[f'{part}, 128, 5400']
    (outlook,) = forecasts.outlooks(scores, sweep)
    assert outlook.observed is None and outlook.trend.forecast == expected


@pytest.mark.parametrize(
    ('forecast', 'message'),
    [
        ({'width': '256'}, "forecast: width='256' "),
        ({'depth': '2'}, 'forecast: depth='),
        ({'part': 'rotary'}, 'of part must be a positive number'),
    ],
)
def test_invalid_forecast_is_rejected(sweep, forecast, message):
    with pytest.raises(UserError, match=message):
        schema._check_forecast(dataclasses.replace(sweep, forecast=forecast))

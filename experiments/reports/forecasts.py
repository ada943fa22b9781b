"""Effects by size and length of training, and forecasts for larger ones.

The effect of an arm is log(loss of the arm / loss of its base). Its trend is

    effect = a + b log₂ width + c log₂ steps

or the same with other numeric factors, fitted by least squares to the cells of a
sweep, one row per combination of levels. The cell that `Sweep.forecast` names is left
out, and its effect tests the forecast.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from experiments.reports.arms import Study
from experiments.reports.tables import Table
from experiments.sweeps.analysis import LEVEL, Scores
from experiments.sweeps.schema import Sweep

COVERAGE = 0.9  # confidence level of a forecast's interval

Cell = tuple[float, ...]  # the numeric levels, such as (64, 600)


class Trend(NamedTuple):
    """A fit of effects, and its forecast.

    Attributes:
      slopes: Change of the effect when a factor doubles, by factor.
      errors: Their standard errors.
      ps: Their two-sided p, of a t with `freedom` degrees of freedom.
      forecast, low, high: The expected effect of the cell that was left out, and the
        interval of `COVERAGE` for the mean over a cell's seeds.
    """

    slopes: tuple[float, ...]
    errors: tuple[float, ...]
    ps: tuple[float, ...]
    freedom: int
    forecast: float
    low: float
    high: float


def fit(effects: Mapping[Cell, float], cell: Cell) -> Trend | None:
    """Fits the trend of effects, and forecasts the effect in another cell.

    Returns None if no degree of freedom is left. The interval assumes equal normal
    errors in all cells, which include deviations from the trend.

    Examples:
      >>> effects = {(w, s): 0.1 * w for w in (1, 2) for s in (1, 2)}
      >>> trend = fit(effects, (4, 2))
      >>> [round(x, 2) for x in trend.slopes], round(trend.forecast, 2)
      ([0.1, 0.0], 0.3)
    """
    from scipy import stats

    design_NC = np.array([_row(own) for own in effects])
    values_N = np.array(list(effects.values()))
    rows, columns = design_NC.shape
    freedom = rows - columns
    if freedom < 1 or np.linalg.matrix_rank(design_NC) < columns:
        return None
    inverse_CC = np.linalg.inv(design_NC.T @ design_NC)
    coefficients_C = inverse_CC @ design_NC.T @ values_N
    residuals_N = values_N - design_NC @ coefficients_C
    variance = float(residuals_N @ residuals_N) / freedom
    errors_C = np.sqrt(variance * np.diag(inverse_CC))
    t = stats.t(freedom)
    with np.errstate(divide='ignore', invalid='ignore'):
        ps_C = 2 * t.sf(np.abs(coefficients_C / errors_C))
    point_C = _row(cell)
    forecast = float(point_C @ coefficients_C)
    error = math.sqrt(variance * (1 + point_C @ inverse_CC @ point_C))
    reach = float(t.isf((1 - COVERAGE) / 2)) * error
    return Trend(
        slopes=tuple(coefficients_C[1:].tolist()),
        errors=tuple(errors_C[1:].tolist()),
        ps=tuple(ps_C[1:].tolist()),
        freedom=freedom,
        forecast=forecast,
        low=forecast - reach,
        high=forecast + reach,
    )


def _row(cell: Cell) -> np.ndarray:
    return np.array([1.0, *map(math.log2, cell)])


def is_informative(trend: Trend, effects: Mapping[Cell, float]) -> bool:
    """Returns whether a forecast says more than the cells that were run.

    It does if its interval excludes 0, or reaches no further than the largest effect.
    """
    largest = max(map(abs, effects.values()))
    return not trend.low < 0 < trend.high or (trend.high - trend.low) / 2 <= largest


class Outlook(NamedTuple):
    """The effects of an arm by cell, its trend, and the effect that was left out."""

    arm: str
    effects: dict[Cell, float]
    trend: Trend | None
    observed: float | None


def outlooks(scores: Scores, sweep: Sweep) -> list[Outlook]:
    """Returns the outlook of each component of a sweep that declares `forecast`."""
    held_out = _cell(sweep.forecast)
    by_component: dict[str, dict[Cell, float]] = {}
    for arm, base in sweep.contrasts:
        if scores.get(arm) and scores.get(base):
            levels = sweep.levels[arm]
            others = [levels[name] for name in levels if name not in sweep.forecast]
            own = {name: levels[name] for name in sweep.forecast}
            effects = by_component.setdefault(', '.join(others), {})
            effects[_cell(own)] = _log_mean(scores[arm]) - _log_mean(scores[base])
    found = []
    for component, effects in by_component.items():
        observed = effects.pop(held_out, None)
        trend = fit(effects, held_out) if effects else None
        found.append(Outlook(component, effects, trend, observed))
    return found


def _log_mean(by_seed: Mapping[Any, float]) -> float:
    return fmean(map(math.log, by_seed.values()))


def _cell(levels: Mapping[str, str]) -> Cell:
    return tuple(map(float, levels.values()))


def table(study: Study) -> Table | None:
    """Returns the table of effects by cell, trends and forecasts, in percent."""
    sweep = study.sweep
    if not sweep.forecast or not study.decides:
        return None
    found = outlooks(study.scores(), sweep)
    cells = sorted({cell for outlook in found for cell in outlook.effects})
    names = [' × '.join(f'{x:,.0f}' for x in cell) for cell in cells]
    slopes = [f'per doubling of {name}' for name in sweep.forecast]
    where = ' × '.join(f'{x:,.0f}' for x in _cell(sweep.forecast))
    columns = ('arm', *names, *slopes, f'forecast at {where}', '90% interval')
    rows = [_table_row(outlook, cells, len(slopes)) for outlook in found]
    note = (
        f"Effects on the loss in percent of the base's, by "
        f'{" × ".join(sweep.forecast)}; negative is better. The cell {where} is left '
        f'out of the trend. Stars mark slopes with p < {LEVEL}. Not predictable: the '
        'interval includes 0 and reaches further than the largest effect.'
    )
    return Table(
        'forecast',
        'Effects by size, and forecasts',
        (*columns, f'measured at {where}'),
        rows,
        note=note,
    )


def _table_row(outlook: Outlook, cells: Sequence[Cell], slopes: int) -> tuple:
    effects = [_percent(outlook.effects.get(cell)) for cell in cells]
    measured = _percent(outlook.observed)
    trend = outlook.trend
    if trend is None:
        return (outlook.arm, *effects, *[None] * (slopes + 2), measured)
    of_trend = [
        f'{_percent(slope)}{"*" if p < LEVEL else ""}'
        for slope, p in zip(trend.slopes, trend.ps, strict=True)
    ]
    if not is_informative(trend, outlook.effects):
        forecast = ('not predictable', None)
    else:
        interval = f'{_percent(trend.low)} to {_percent(trend.high)}'
        forecast = (_percent(trend.forecast), interval)
    return (outlook.arm, *effects, *of_trend, *forecast, measured)


def _percent(effect: float | None) -> str | None:
    if effect is None:
        return None
    return f'{100 * math.expm1(effect):+.1f}%'.replace('-', '−')

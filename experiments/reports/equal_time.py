"""Differences at equal training time, from the base's own learning curve.

An arm that takes twice the base's time is compared with the base after twice the steps.
That score comes from arms that differ from the base only in their number of steps. It
is interpolated between the two nearest arms, linearly in the logarithm of the time.
"""

import dataclasses
import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from experiments.reports.arms import Arm, Study
from experiments.reports.tables import Interval, Table
from experiments.runs.reading import Run
from experiments.sweeps.analysis import LEVEL
from experiments.sweeps.schema import Sweep

# They follow from the number of steps.
_STEP_FIELDS = ('train.steps', 'evaluation.every', 'checkpoint.every')


class EqualTime(NamedTuple):
    """The difference between an arm and its base after the arm's time.

    Attributes:
      ratio: The arm's time, relative to the base's.
      low, high: Simultaneous 95% interval over seeds (Bonferroni); None if unknown. The
        times themselves count as exact.
    """

    arm: str
    base: str
    ratio: float
    effect: float
    low: float | None
    high: float | None


@dataclasses.dataclass(frozen=True)
class _Point:
    """The runs of an arm: mean of log time, mean score, and number of seeds."""

    time: float
    score: float
    seeds: int


def differences(study: Study) -> list[EqualTime]:
    """Returns the difference of each declared contrast whose base has a curve."""
    points = _points(study)
    pairs = [
        (arm, base, _curve(study.sweep, base, points))
        for arm, base in study.sweep.contrasts
        if arm in points and base in points
    ]
    pairs = [pair for pair in pairs if len(pair[2]) > 1]
    variance, freedom = _error_variance(study)
    found = []
    for arm, base, curve in pairs:
        own = points[arm]
        (left, right), weight = _neighbors(curve, own.time)
        expected = (1 - weight) * left.score + weight * right.score
        effect = own.score - expected
        low = high = None
        if freedom and variance:
            shares = 1 / own.seeds
            shares += (1 - weight) ** 2 / left.seeds + weight**2 / right.seeds
            reach = _quantile(freedom, len(pairs)) * math.sqrt(variance * shares)
            low, high = effect - reach, effect + reach
        ratio = math.exp(own.time - points[base].time)
        found.append(EqualTime(arm, base, ratio, effect, low, high))
    return found


def _points(study: Study) -> dict[str, _Point]:
    points = {}
    for arm in study.arms:
        scores = list(arm.by_seeds(study.measure).values())
        times = _times(study, arm)
        if scores and None not in times:
            log_time = fmean(map(math.log, times))
            points[arm.name] = _Point(log_time, fmean(scores), len(scores))
    return points


def _times(study: Study, arm: Arm) -> list[Any]:
    entry = 'train_cpu_seconds' if _has_cpu_times(study) else 'train_seconds'
    return [run.result.get(entry) for run in arm.scored]


def _has_cpu_times(study: Study) -> bool:
    """Returns whether the time on CPU cores is the training time of all runs."""
    return all(
        set(run.environment.get('devices', {})) == {'cpu'}
        and run.result.get('train_cpu_seconds') is not None
        for arm in study.arms
        for run in arm.scored
    )


def _curve(sweep: Sweep, base: str, points: dict[str, _Point]) -> list[_Point]:
    """Returns the points of the base and of arms with other steps, by distinct time."""

    def others(arm):
        return {k: v for k, v in sweep.arms[arm].items() if k not in _STEP_FIELDS}

    same = [arm for arm in points if others(arm) == others(base)]
    by_time = {points[arm].time: points[arm] for arm in same}
    return [by_time[time] for time in sorted(by_time)]


def _neighbors(
    curve: Sequence[_Point], time: float
) -> tuple[tuple[_Point, _Point], float]:
    """Returns the two points around a time, or the last ones, and a weight."""
    index = sum(point.time < time for point in curve[1:-1])
    left, right = curve[index], curve[index + 1]
    return (left, right), (time - left.time) / (right.time - left.time)


def _error_variance(study: Study) -> tuple[float, int]:
    """Returns the variance within arms and its degrees of freedom."""
    groups = [list(arm.by_seeds(study.measure).values()) for arm in study.arms]
    groups = [group for group in groups if len(group) > 1]
    freedom = sum(len(group) - 1 for group in groups)
    if not freedom:
        return 0.0, 0
    squares = sum(float(np.var(group)) * len(group) for group in groups)
    return squares / freedom, freedom


def _quantile(freedom: int, family: int) -> float:
    from scipy import stats

    return float(stats.t.isf(LEVEL / family / 2, freedom))


def table(study: Study) -> Table | None:
    """Returns the differences at equal time next to those after equal steps."""
    found = differences(study)
    if not found:
        return None
    means = {arm: fmean(of.values()) for arm, of in study.scores().items()}
    rows = []
    for x in found:
        interval = None
        if x.low is not None and x.high is not None:
            interval = Interval(x.low, x.high)
        rows.append(
            (
                x.arm,
                x.base,
                x.ratio,
                means[x.arm] - means[x.base],
                x.effect,
                interval,
                _verdict(study, x),
            )
        )
    names = ('arm', 'base', 'time', 'per step', 'at equal time', '95% CI', 'verdict')
    decimals = dict.fromkeys(names[3:6], study.measure.decimals) | {'time': 2}
    kind = 'on CPU cores' if _has_cpu_times(study) else 'by the clock'
    note = (
        f'Time of training {kind}, relative to the base{_machines(study)}. At equal '
        'time: compared with the base after the time of the arm, interpolated between '
        'runs of the base with other numbers of steps. Intervals are simultaneous '
        '(Bonferroni).'
    )
    return Table('equal_time', 'At equal time', names, rows, decimals, note)


def _verdict(study: Study, x: EqualTime) -> str:
    if x.low is None or x.high is None:
        return 'not testable'
    if x.low <= 0 <= x.high:
        return 'not significant'
    rises = x.effect > 0
    return 'better' if rises == study.measure.higher_is_better else 'worse'


def _machines(study: Study) -> str:
    names = {_processor(run) for arm in study.arms for run in arm.scored} - {''}
    return f', on {", ".join(sorted(names))}' if names else ''


def _processor(run: Run) -> str:
    devices = [name for name in run.environment.get('devices', {}) if name != 'cpu']
    processor = run.environment.get('processor', {}).get('name', '')
    return devices[0] if devices else str(processor)

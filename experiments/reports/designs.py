"""What a sweep's design tells beside its answer: of its factors, and of its tuning."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

from scipy import stats

from experiments.reports import analysis, statistics
from experiments.reports.arms import Study
from experiments.reports.figures import Figure, Line, line_chart
from experiments.reports.statistics import PValue
from experiments.reports.tables import Table
from experiments.runs.reading import Run
from experiments.sweeps import planning


class Tried(NamedTuple):
    """What an arm tried, and with what it is reported.

    Attributes:
      arm: its name.
      scores: value → those of its trials, in the order of the sweep's file.
      chosen: the value with the best mean; None where it is not known.
    """

    arm: str
    scores: dict[Any, list[float]]
    chosen: Any


def effects(study: Study) -> Table | None:
    """Which factors matter, and whether what one brings hangs on another.

    Returns:
      None where the sweep has no factors, or nothing tells chance.
    """
    if study.sweep is None or len(study.sweep.factors) < 2:
        return None
    scores = {arm.name: arm.by_seeds(study.measure) for arm in study.arms}
    there = {name: by_seed for name, by_seed in scores.items() if by_seed}
    names = list(study.sweep.factors)
    found = analysis.effects(there, study.sweep.levels, names) if there else []
    rows = [
        (' × '.join(x.factors), f'{x.freedom[0]}, {x.freedom[1]}', x.f, PValue(x.p))
        for x in found
    ]
    note = (
        'Analysis of variance of type II, blocked by seed. A product of factors is '
        'their interaction: whether what one brings depends on the other. Each p is '
        'of its row alone.'
    )
    columns = ('factor', 'degrees of freedom', 'F', 'p')
    return Table('factors', 'Factors', columns, rows, note=note) if rows else None


def across_data(study: Study) -> Table | None:
    """Each arm over all data sets of a sweep that has them as a factor.

    Returns:
      None where it has not, or an arm has no score of one.
    """
    levels = study.sweep.factors if study.sweep else {}
    places = [i for i, name in enumerate(levels) if _is_of_data(levels[name])]
    if study.sweep is None or not places or len(levels) < 2:
        return None
    sign = 1 if study.measure.higher_is_better else -1
    scores: dict[str, list[list[float]]] = {}  # of each data set
    for arm in study.arms:
        others = list(study.sweep.levels[arm.name])
        del others[places[0]]
        values = [sign * x for x in arm.by_seeds(study.measure).values()]
        scores.setdefault(', '.join(others), []).append(values)
        if arm is study.base:
            base = ', '.join(others)
    if not all(values for sets in scores.values() for values in sets):
        return None
    means = [[-fmean(values) for values in sets] for sets in scores.values()]
    ranks = stats.rankdata(means, axis=0).mean(1)
    rows = []
    for (name, sets), rank in zip(scores.items(), ranks.tolist(), strict=True):
        found = analysis.improvement(scores[base], sets) if name != base else None
        interval = None if found is None else f'{found.low:.2f} to {found.high:.2f}'
        rows.append((name, rank, None if found is None else found.chance, interval))
    rows.sort(key=lambda row: row[1])
    note = (
        f'Rank: of means over seeds, on average over {len(scores[base])} data sets. '
        f'Above {base}: how often a run is, on the same data; 0.5 is none (Agarwal et '
        'al. 2021). The interval is of other seeds on these data sets, each row by '
        'itself; of other data sets it says nothing.'
    )
    columns = ('arm', 'mean rank', f'above {base}', '95 % interval')
    return Table('across_data', 'Over all data sets', columns, rows, note=note)


def _is_of_data(levels: dict[str, dict[str, Any]]) -> bool:
    return all('data' in overrides for overrides in levels.values())


def time_to_target(study: Study) -> Table | None:
    """What each arm took until the dev set had the sweep's target (Dahl et al. 2023).

    Returns:
      None where the sweep has no target.
    """
    target = study.sweep.target if study.sweep else None
    if target is None:
        return None
    rows = []
    for arm in study.arms:
        reached = [
            row for run in arm.scored if (row := _first_at_target(study, run, target))
        ]
        means = [
            statistics.spread([row.get(name) for row in reached])
            for name in ('step', 'tokens', 'seconds')
        ]
        rows.append((arm.name, f'{len(reached)} of {len(arm.scored)}', *means))
    score = study.measure.score
    note = (
        f'The first evaluation during training with {score} {target} or better, on '
        'average over the seeds that came there. Only evaluations are looked at: it '
        'may have been reached since the last one.'
    )
    columns = ('arm', 'seeds that reached it', 'steps', 'target tokens', 'seconds')
    title = f'Time to a {score} of {target}'
    return Table('time_to_target', title, columns, rows, note=note)


def _first_at_target(study: Study, run: Run, target: float) -> dict[str, Any] | None:
    sign = 1 if study.measure.higher_is_better else -1
    for row in run.dev_rows():
        value = row.get(study.measure.score)
        if value is not None and sign * value >= sign * target:
            return row
    return None


def tried(study: Study) -> list[Tried]:
    """Of each arm what it tried; nothing where the sweep tunes nothing."""
    sweep = study.sweep
    if sweep is None or sweep.tune is None:
        return []
    values = planning.chosen(sweep, sweep.trials)
    found = []
    for arm in sweep.arms:
        scores = planning.trial_scores(x for x in sweep.trials if x.arm == arm)
        found.append(Tried(arm, scores, values.get(arm)))
    return found


def doubts(study: Study, found: Sequence[Tried]) -> list[str]:
    """A line for each arm whose best value is the least or the largest tried."""
    lines = []
    for arm, scores, value in found:
        assert study.sweep is not None and study.sweep.tune is not None
        ends = study.sweep.tune.values
        if _are_numbers(ends) and value in (min(ends), max(ends)):
            lines.append(
                f'{arm}: its best {study.sweep.tune.field}, {value}, is at the edge '
                'of what was tried: a value beyond may be better.'
            )
        missing = [str(x) for x in ends if x not in scores]
        if missing:
            lines.append(f'{arm}: trials with {", ".join(missing)} have no score.')
    return lines


def tuning(study: Study, found: Sequence[Tried]) -> tuple[list[Table], list[Figure]]:
    """The trials as a table and a figure, and how good the best of fewer would be."""
    assert study.sweep is not None and study.sweep.tune is not None
    tune = study.sweep.tune
    score = f'{tune.set} {study.measure.score}'
    rows = [
        (arm, value, statistics.spread(of_value), 'yes' if value == chosen else '')
        for arm, scores, chosen in found
        for value, of_value in scores.items()
    ]
    decimals = [score] if study.measure.is_of_translations else []
    columns = ('arm', tune.field, score, 'chosen')
    trials = Table('tuning', 'Trials', columns, rows, decimals)
    best = max if study.measure.higher_is_better else min
    curves = {}
    for arm, scores, _ in found:
        means = list(map(fmean, scores.values()))
        curves[arm] = analysis.expected_best(means, best) if means else []
    most = max(map(len, curves.values()), default=0)
    names = [str(number) for number in range(1, most + 1)]
    budgets = Table(
        'expected_best',
        f'The best {score} of so many trials, on average',
        ('arm', *names),
        [(arm, *curve, *[None] * (most - len(curve))) for arm, curve in curves.items()],
        names if decimals else (),
        'Trials drawn from those above (Dodge et al. 2019). An arm that is ahead at '
        'every number is not so because it was tuned longer.',
    )
    lines = []
    if _are_numbers(tune.values):
        lines = [_line(x) for x in found if x.scores]
    if not lines:
        return [trials, budgets], []
    logarithmic = min(min(line.x) for line in lines) > 0
    chart = line_chart(lines, tune.field, score, logarithmic)
    title = f'{score} against {tune.field}'
    return [trials, budgets], [Figure('tuning', title, chart)]


def _are_numbers(values: Sequence[Any]) -> bool:
    """Whether values have an order, by which they can be drawn."""
    return all(isinstance(x, int | float) and not isinstance(x, bool) for x in values)


def _line(found: Tried) -> Line:
    scores = found.scores.values()
    means, low, high = (list(map(f, scores)) for f in (fmean, min, max))
    return Line(found.arm, list(found.scores), means, low, high)

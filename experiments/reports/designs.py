"""Tables and figures of a sweep's factors and tuning."""

import collections
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
from scipy import stats

from experiments.command_line import console
from experiments.evaluation.measure import Measure
from experiments.reports import figures
from experiments.reports.arms import Study
from experiments.reports.figures import Figure
from experiments.reports.tables import PValue, Table, column_decimals
from experiments.runs.reading import Run
from experiments.sweeps import analysis, planning
from experiments.sweeps.analysis import Effect
from experiments.sweeps.planning import ArmTrials
from experiments.sweeps.schema import Tuning

_MAX_VARIANCE_RATIO = 10.0  # largest ratio of error variances that one test pools


def factor_effects(study: Study) -> list[Effect]:
    """Returns effects of factors and their interactions that can be estimated.

    Returns none if the errors of the data sets differ too much to be pooled.
    """
    scores = study.scores()
    if len(study.sweep.factors) < 2 or not scores or _unequal_errors(study):
        return []
    return analysis.effects(scores, study.sweep.levels)


def _unequal_errors(study: Study) -> list[str]:
    """Says why the errors of data sets are not pooled, if they aren't."""
    sweep = study.sweep
    if sweep.factor_of_data is None or len(sweep.factors) < 2:
        return []
    bases = study.bases
    variances = analysis.error_variances(study.scores(), bases, not sweep.base_seeds)
    if not variances:
        return []
    least = min(variances, key=variances.__getitem__)
    most = max(variances, key=variances.__getitem__)
    if variances[most] <= _MAX_VARIANCE_RATIO * variances[least]:
        return []
    return [
        'Factors are not tested over all data sets: the error variance is '
        f'{console.cell(variances[most])} on the data of {most} and '
        f'{console.cell(variances[least])} on that of {least}, and the test assumes '
        'equal ones.'
    ]


def effects(study: Study) -> Table | None:
    rows = []
    for factors, (own, of_errors), f, p in factor_effects(study):
        rows.append((' × '.join(factors), f'{own}, {of_errors}', f, PValue(p)))
    if not rows:
        return None
    note = (
        'Type II analysis of variance, blocked by seed. A product of factors is '
        'their interaction: whether the effect of one depends on the other. p is not '
        'adjusted for multiple rows.'
    )
    if study.sweep.factor_of_data:
        note += ' The error variance is assumed to be equal on all data sets.'
    columns = ('factor', 'degrees of freedom', 'F', 'p')
    return Table('factors', 'Factors', columns, rows, {'F': 2}, note)


def across_data(study: Study) -> Table | None:
    """Compares arms over all data sets of a sweep, if none lacks a score."""
    sweep = study.sweep
    data = sweep.factor_of_data
    if data is None or len(sweep.factors) < 2:
        return None
    names = sweep.without_factor(data)
    scores = collections.defaultdict(list)  # by data set
    for arm in study.arms:
        by_seeds = arm.by_seeds(study.measure)
        if not by_seeds:
            return None
        values = list(map(study.measure.rank, by_seeds.values()))
        scores[names[arm.name]].append(values)
    means = [list(map(fmean, sets)) for sets in scores.values()]
    ranks = stats.rankdata(np.negative(means), axis=0).mean(1)
    base = names[study.base.name]
    rows = []
    for (name, sets), rank in zip(scores.items(), ranks.tolist(), strict=True):
        chance = interval = None
        if name != base:
            chance, low, high = analysis.improvement(scores[base], sets)
            interval = f'{low:.2f} to {high:.2f}'
        rows.append((name, rank, chance, interval))
    rows.sort(key=lambda row: row[1])
    note = (
        f'Mean rank: of means over seeds, averaged over {len(scores[base])} data sets. '
        f'P(better than {base}): the probability that a run beats one of {base} on '
        'the same data (Agarwal et al. 2021); 0.5 means no difference. The interval '
        'is for other seeds on these data sets, separately for each row.'
    )
    columns = ('arm', 'mean rank', f'P(better than {base})', '95% CI')
    decimals = dict.fromkeys(columns[1:3], 2)
    return Table('across_data', 'All data sets', columns, rows, decimals, note)


def time_to_target(study: Study) -> Table | None:
    """Returns each arm's cost to reach the sweep's target (Dahl et al. 2023)."""
    target = study.sweep.target
    if target is None:
        return None
    rows = []
    for arm in study.arms:
        found = [_first_at_target(study, run, target) for run in arm.scored]
        reached = [row for row in found if row]
        means = [
            analysis.spread([row.get(entry) for row in reached])
            for entry in ('step', 'tokens', 'seconds')
        ]
        rows.append((arm.name, f'{len(reached)} of {len(found)}', *means))
    score = study.measure.score
    note = (
        f'Cost at the first evaluation during training with {score} {target} or '
        'better, averaged over the seeds that reached it. A run may have reached it '
        'earlier, between two evaluations.'
    )
    columns = ('arm', 'seeds reached', 'steps', 'target tokens', 'seconds')
    title = f'Time to {score} {target}'
    decimals = column_decimals(columns, rows)
    return Table('time_to_target', title, columns, rows, decimals, note)


def _first_at_target(study: Study, run: Run, target: float) -> dict[str, Any]:
    measure = study.measure
    for row in run.dev_rows():
        value = row.get(measure.score)
        if value is not None and measure.rank(value) >= measure.rank(target):
            return row
    return {}


def tried(study: Study) -> list[ArmTrials]:
    if study.sweep.tune is None:
        return []
    return planning.arm_trials(study.sweep, study.sweep.trials)


def warnings(study: Study) -> list[str]:
    """Warns of unpooled errors, missing trials, and best values at an edge."""
    lines = _unequal_errors(study)
    for arm, scores, value in tried(study):
        tune, _ = _tuning(study)
        values = tune.tried
        if all(map(console.is_number, values)) and value in (min(values), max(values)):
            lines.append(
                f'{arm}: the best {tune.field}, {value}, is at the edge of the search '
                'range. A value outside may be better.'
            )
        missing = [str(value) for value in values if value not in scores]
        if missing:
            lines.append(f'{arm}: no score for the trials {", ".join(missing)}.')
    return lines


def trials(study: Study, found: Sequence[ArmTrials]) -> Table:
    rows = []
    for arm, scores, chosen in found:
        for value, of_value in scores.items():
            mark = 'yes' if value == chosen else ''
            rows.append((arm, value, analysis.spread(of_value), mark))
    tune, score = _tuning(study)
    columns = ('arm', tune.field, str(score), 'chosen')
    decimals = {str(score): score.decimals}
    return Table('tuning', 'Trials', columns, rows, decimals)


def expected_best(study: Study, found: Sequence[ArmTrials]) -> Table:
    _, score = _tuning(study)
    best = max if score.higher_is_better else min
    most = max(len(scores) for _, scores, _ in found)
    rows = []
    for arm, scores, _ in found:
        means = list(map(fmean, scores.values()))
        curve = analysis.expected_best(means, best)
        rows.append((arm, *curve, *[None] * (most - len(curve))))
    note = (
        'Expected maximum over random subsets of the trials (Dodge et al. 2019). An '
        'arm that leads at every number of trials does not owe it to more tuning.'
    )
    title = f'Expected best {score} by number of trials'
    numbers = [str(number) for number in range(1, most + 1)]
    decimals = dict.fromkeys(numbers, score.decimals)
    return Table('expected_best', title, ('arm', *numbers), rows, decimals, note)


def tuning_curve(study: Study, found: Sequence[ArmTrials]) -> Figure | None:
    tune, measure = _tuning(study)
    trials = {arm: scores for arm, scores, _ in found}
    return figures.tuning_curve(trials, tune.field, measure)


def _tuning(study: Study) -> tuple[Tuning, Measure]:
    tune = study.sweep.tune
    assert tune is not None
    return tune, study.sweep.trials[0].measure

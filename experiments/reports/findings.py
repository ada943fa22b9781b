"""The answer of a report: arms ranked, and whether their differences can be chance.

Beside it all scores, their cost, and what was published.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from experiments.reports.arms import Arm, Measure, Study
from experiments.reports.statistics import (
    LEVEL,
    RESAMPLES,
    Difference,
    Spread,
    holm,
    paired_bootstrap,
    welch,
)
from experiments.reports.tables import Interval, PValue, Table, shown
from experiments.runs import reading
from experiments.runs.reading import SCORES

COSTS = {
    'parameters': 'parameters',
    'flops_per_token': 'FLOPs a token',
    'training_flops': 'training FLOPs',
    'train_seconds': 'training seconds',
    'tokens_per_second': 'tokens a second',
    'peak_memory_bytes': 'peak memory, bytes',
}
NOTHING_ACROSS_SEEDS = 'one seed: nothing can be said across seeds'
BOOTSTRAPPED = ('bleu', 'chrf')


class Comparison(NamedTuple):
    """An arm beside the base.

    Attributes:
      arm: the arm.
      spread: its scores; None where it has none.
      difference: from the base; None of the base, and where one has no score.
      corrected: the p-value after Holm's correction.
    """

    arm: Arm
    spread: Spread | None
    difference: Difference | None
    corrected: float | None


def comparisons(study: Study) -> list[Comparison]:
    """Each arm beside the base, the best first."""
    base = study.base.values(study.measure)
    arms = study.ranked()
    differences = []
    for arm in arms:
        values = arm.values(study.measure)
        comparable = arm is not study.base and values and base
        differences.append(welch(values, base) if comparable else None)
    corrected = holm([d.p if d else None for d in differences])
    found = []
    for arm, difference, p in zip(arms, differences, corrected, strict=True):
        found.append(Comparison(arm, arm.spread(study.measure), difference, p))
    return found


def verdict(study: Study, comparison: Comparison) -> str:
    """What can be said of an arm, in words.

    'better' and 'worse' are said of a difference whose corrected p is below `LEVEL`,
    by the direction of the measure: of a loss, less is better.
    """
    arm, found, difference, corrected = comparison
    if found is None:
        return 'no finished run'
    if arm is study.base:
        return 'the base'
    if difference is None:
        return 'the base has no finished run'
    if corrected is not None:
        if corrected >= LEVEL:
            return 'no difference shown'
        rises = difference.value > 0
        return 'better' if rises == study.measure.higher_is_better else 'worse'
    if min(found.n, len(study.base.values(study.measure))) < 2:
        return NOTHING_ACROSS_SEEDS
    return 'the seeds do not differ: no test can be made'


def _interval(difference: Difference | None) -> Interval | None:
    if difference is None or difference.low is None or difference.high is None:
        return None
    return Interval(difference.low, difference.high)


def ranking(study: Study, found: Sequence[Comparison]) -> Table:
    """The table of the answer: a row an arm, with its test against the base.

    Args:
      study: whose arms they are.
      found: as `comparisons` has them.
    """
    measure = str(study.measure)
    rows = []
    for comparison in found:
        arm, mean, difference, corrected = comparison
        p = PValue(difference.p) if difference and difference.p is not None else None
        of_all = None if corrected is None else PValue(corrected)
        numbers = (mean, difference, _interval(difference), p, of_all)
        words = verdict(study, comparison)
        rows.append((arm.name, mean.n if mean else 0, *numbers, words))
    names = ('arm', 'seeds', measure, 'difference', '95 % interval')
    note = (
        'Mean ± standard deviation over seeds. Difference: from the base, with '
        "Welch's t-test, two-sided; the interval is not corrected. Corrected: by "
        "Holm's method for the arms that are compared; an arm is better or worse "
        f'where the corrected p is below {LEVEL}.'
    )
    decimals = frozenset((measure, 'difference', '95 % interval'))
    scores = decimals if study.measure.score in BOOTSTRAPPED else frozenset()
    columns = (*names, 'p', 'p corrected', 'verdict')
    return Table('answer', 'Arms, the best first', columns, tuple(rows), scores, note)


def bootstrap(study: Study) -> Table | None:
    """The paired bootstrap of each arm and seed against the base's run of that seed.

    Returns:
      None where the measure is no score of translations, or nothing can be paired.

    Raises:
      UserError: translations cannot be read.
    """
    score = study.measure.score
    if score not in BOOTSTRAPPED:
        return None
    bases = {run.seeds: run for run in study.base.scored}
    tests = []
    for arm in study.arms:
        for run in arm.scored:
            if arm is study.base or run.seeds not in bases:
                continue
            of_arm = reading.read_translations(run, study.measure.set)
            of_base = reading.read_translations(bases[run.seeds], study.measure.set)
            if of_arm is None or of_base is None or of_arm[:2] != of_base[:2]:
                continue
            test = paired_bootstrap(score, of_base[2], of_arm[2], references=of_arm[1])
            tests.append((arm.name, run.seed, test))
    if not tests:
        return None
    corrected = holm([test.p for _, _, test in tests])
    rows = []
    for (arm, seed, test), p in zip(tests, corrected, strict=True):
        difference = Difference(test.score - test.base_score)
        ps = (PValue(test.p), PValue(p or 0.0))
        rows.append((arm, seed, test.base_score, test.score, difference, *ps))
    names = ('arm', 'seed', f'base {score}', score, 'difference', 'p', 'p corrected')
    note = (
        f'Set {study.measure.set}, the run of an arm against the run of the base with '
        f"the same seed: sacreBLEU's paired bootstrap, {RESAMPLES:,} "
        'resamples of its sentences. It asks whether other sentences would say the '
        'same of these two runs; of other seeds it says nothing. Corrected: by '
        "Holm's method for all rows."
    )
    title = 'Within a seed'
    return Table('bootstrap', title, names, tuple(rows), frozenset(names[2:5]), note)


def answer(study: Study, found: Sequence[Comparison]) -> list[str]:
    """The best arm."""
    best = found[0]
    if best.spread is None:
        return ['No run has finished: there is no score to compare.']
    mean = shown(best.spread, study.measure.score in BOOTSTRAPPED)
    seeds = '1 seed' if best.spread.n == 1 else f'{best.spread.n} seeds'
    return [f'Best by {study.measure}: {best.arm.name}, {mean} ({seeds}).']


def costs(study: Study) -> Table:
    """Cost beside score: a row an arm, the best first; means over finished runs."""
    rows = []
    for arm in study.ranked():
        values = [arm.cost(entry) for entry in COSTS]
        rows.append((arm.name, arm.spread(study.measure), *values))
    measure = str(study.measure)
    names = ('arm', measure, *COSTS.values())
    title = 'Cost beside score'
    return Table('cost', title, names, tuple(rows), frozenset([measure]))


def scores(study: Study) -> Table:
    """Every score of every set: a row for each set and arm; means over seeds."""
    sets = dict.fromkeys(
        name for arm in study.arms for run in arm.scored for name in run.evaluations
    )
    rows: list[tuple[Any, ...]] = []
    for name in sets:
        for arm in study.arms:
            spreads = [arm.spread(Measure(name, score)) for score in SCORES]
            rows.append((name, arm.name, *spreads))
    columns = ('set', 'arm', *SCORES)
    bold = frozenset(('bleu', 'chrf'))
    return Table('scores', 'All scores', columns, tuple(rows), bold)


def published(study: Study) -> Table | None:
    """What the source says of each arm beside what is measured here.

    Numbers of the source are scores, which are of the set that decides, or costs.

    Returns:
      None without a sweep, and where its source gives no numbers.
    """
    if study.sweep is None or not any(study.sweep.published.values()):
        return None
    numbers = study.sweep.published
    names = dict.fromkeys(name for entry in numbers.values() for name in entry)
    rows: list[tuple[Any, ...]] = []
    for arm in study.arms:
        row: list[Any] = [arm.name]
        for name in names:
            measure = Measure(study.measure.set, name)
            here = arm.spread(measure) if name in SCORES else arm.cost(name)
            row += [numbers.get(arm.name, {}).get(name), here]
        rows.append(tuple(row))
    columns = [f'{name}, {side}' for name in names for side in ('published', 'here')]
    decimals = frozenset(name for name in columns if name.startswith(('bleu', 'chrf')))
    title = 'Beside what was published'
    return Table('published', title, ('arm', *columns), tuple(rows), decimals)

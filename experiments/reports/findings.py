"""The answer of a report: arms ranked, and whether their differences can be chance."""

from collections.abc import Sequence
from typing import NamedTuple

from experiments.command_line import console
from experiments.reports.arms import Arm, Study
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
    """What can be said of an arm, in words."""
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


def sentence(study: Study, comparison: Comparison) -> str:
    """What can be said of an arm, as a sentence with its numbers; '' of the base."""
    arm, found, difference, corrected = comparison
    if found is None or difference is None:
        return ''
    side = 'above' if difference.value >= 0 else 'below'
    amount = shown(abs(difference.value), is_score(study))
    text = f'{arm.name} is {amount} {side} {study.base.name}'
    if difference.p is None or corrected is None:
        return f'{text}: {verdict(study, comparison)}.'
    numbers = [f'95 % interval {shown(_interval(difference), is_score(study))}']
    for name, p in (('p', difference.p), ('corrected p', corrected)):
        value = shown(PValue(p))
        sign = '' if value.startswith('<') else '= '
        numbers.append(f'{name} {sign}{value}')
    interval, *ps = numbers
    words = 'significant' if corrected < LEVEL else 'not significant'
    return f'{text} ({interval}; {", ".join(ps)}): {words}.'


def _interval(difference: Difference | None) -> Interval | None:
    if difference is None or difference.low is None or difference.high is None:
        return None
    return Interval(difference.low, difference.high)


def is_score(study: Study) -> bool:
    """Whether the measure is shown with two decimals."""
    return study.measure.score in BOOTSTRAPPED


def ranking(study: Study, found: Sequence[Comparison]) -> Table:
    """The table of the answer."""
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
        f'{measure}: mean ± standard deviation over seeds. Difference: from the base, '
        f"{study.base.name}, with Welch's t-test, two-sided; the interval is not "
        f"corrected. Corrected: by Holm's method for the arms that are compared; "
        f'{"higher" if study.measure.higher_is_better else "lower"} is better, and '
        f'"better" and "worse" are said where the corrected p is below {LEVEL}.'
    )
    scores = frozenset((measure, 'difference', '95 % interval') * is_score(study))
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
        difference = Difference(test.score - test.base_score, None, None, None)
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
    """The answer in sentences, the first of them the best arm."""
    best = found[0]
    if best.spread is None:
        return ['No run has finished: there is no score to compare.']
    mean = shown(best.spread, is_score(study))
    seeds = console.cell(best.spread.n) + (' seed' if best.spread.n == 1 else ' seeds')
    lines = [f'Best by {study.measure}: {best.arm.name}, {mean} ({seeds}).']
    if max(comparison.spread.n for comparison in found if comparison.spread) == 1:
        lines.append(
            'Each arm has one seed: nothing can be said across seeds, for what other '
            'seeds would have given is not known. Two or more give an interval.'
        )
    lines += [sentence(study, comparison) for comparison in found]
    return [line for line in lines if line]

"""The answer of a report: arms ranked, and whether their differences can be chance.

Beside it all scores, their cost, and what was published.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.metrics.base import OF_MODELS, Metric
from experiments.reports import analysis
from experiments.reports.analysis import LEVEL, Contrast, OverSentences
from experiments.reports.arms import Arm, Measure, Study, metric_of
from experiments.reports.statistics import Spread
from experiments.reports.tables import Table, cells_of, shown
from experiments.runs import reading
from experiments.runs.reading import Translations

COSTS = {
    'parameters': 'parameters',
    'flops_per_token': 'FLOPs a token',
    'training_flops': 'training FLOPs',
    'train_seconds': 'training seconds',
    'tokens_per_second': 'tokens a second',
    'peak_memory_bytes': 'peak memory, bytes',
}
NOTHING_ACROSS_SEEDS = 'one seed: nothing can be said across seeds'


class Comparison(NamedTuple):
    """An arm beside the base.

    Attributes:
      arm: the arm.
      spread: its scores; None where it has none.
      contrast: with the base; None of the base, and where one has no score.
    """

    arm: Arm
    spread: Spread | None
    contrast: Contrast | None


def comparisons(study: Study) -> list[Comparison]:
    """Each arm beside the base, the best first."""
    arms = study.ranked()
    scores = _scores(study)
    base = study.base.name
    contrasts = analysis.compare(scores, base) if base in scores else []
    of_arm = {contrast.arm: contrast for contrast in contrasts}
    return [
        Comparison(arm, arm.spread(study.measure), of_arm.get(arm.name)) for arm in arms
    ]


def declared(study: Study) -> list[Contrast]:
    """The differences that a sweep's file names as its question, as far as there."""
    if study.sweep is None:
        return []
    scores = _scores(study)
    pairs = [x for x in study.sweep.contrasts if x[0] in scores and x[1] in scores]
    if not pairs:
        return []
    margin = study.sweep.margin or None
    return analysis.compare(scores, contrasts=pairs, margin=margin)


def _scores(study: Study) -> dict[str, dict[Any, float]]:
    """Those of each arm that has any, the best first."""
    scores = {arm.name: arm.by_seeds(study.measure) for arm in study.ranked()}
    return {name: by_seeds for name, by_seeds in scores.items() if by_seeds}


def verdict(study: Study, comparison: Comparison) -> str:
    """What can be said of an arm, in words.

    'better' and 'worse' are said of a difference that is significant, by the direction
    of the measure: of a loss, less is better.

    Args:
      study: whose arm it is.
      comparison: of the arm, as `comparisons` has it.
    """
    arm, found, contrast = comparison
    if found is None:
        return 'no finished run'
    if arm is study.base:
        return 'the base'
    if contrast is None:
        return 'the base has no finished run'
    if contrast.p is not None:
        return _word(study, contrast)
    if min(found.n, len(study.base.by_seeds(study.measure))) < 2:
        return NOTHING_ACROSS_SEEDS
    return 'the seeds do not differ: no test can be made'


def _word(study: Study, contrast: Contrast) -> str:
    if contrast.significant:
        rises = contrast.effect > 0
        return 'better' if rises == study.measure.higher_is_better else 'worse'
    return 'equivalent' if contrast.equivalent else 'no difference shown'


def ranking(study: Study, found: Sequence[Comparison]) -> Table:
    """The table of the answer: a row an arm, with its test against the base.

    Args:
      study: whose arms they are.
      found: as `comparisons` has them.
    """
    measure = str(study.measure)
    rows = []
    for comparison in found:
        arm, mean, contrast = comparison
        seeds = mean.n if mean else 0
        test = cells_of(contrast) if contrast else (None, None, None)
        rows.append((arm.name, seeds, mean, *test, verdict(study, comparison)))
    names = ('arm', 'seeds', measure, 'difference', '95 % interval')
    note = (
        'Mean ± standard deviation over seeds. Difference: from the base, without what '
        'a seed brings to all arms alike (blocked by seed, where arms share them). The '
        "intervals hold together, by Dunnett's method: p is that of the whole family, "
        f'and an arm is better or worse where it is below {LEVEL}.'
    )
    if study.sweep is not None and study.sweep.contrasts:
        note += ' Of these, what the question does not name is exploratory.'
    scores = names[2:] if study.measure.is_of_translations else ()
    columns = (*names, 'p', 'verdict')
    return Table('answer', 'Arms, the best first', columns, rows, scores, note)


def over_sentences(study: Study) -> Table | None:
    """Each arm beside the base, over other seeds and other sentences at once.

    Returns:
      None where the measure is no score of translations, or nothing can be paired.

    Raises:
      UserError: translations cannot be read.
    """
    if not study.measure.is_of_translations:
        return None
    pairs = {
        arm.name: found
        for arm in study.arms
        if arm is not study.base and (found := _paired_translations(study, arm))
    }
    if not pairs:
        return None
    metric = metric_of(study.base.scored[0], study.measure)
    contrasts = {x.arm.name: x.contrast for x in comparisons(study)}
    rows = []
    for name, found in pairs.items():
        contrast = contrasts.get(name)
        if contrast is not None and contrast.seeds != len(found):
            contrast = None  # its error is that of more seeds than are paired
        test = paired_test(metric, found, len(pairs), contrast)
        share = None if test.share is None else f'{test.share:.0%}'
        rows.append((name, len(found), *cells_of(test), share))
    names = ('arm', 'seeds', 'difference', '95 % interval', 'p', 'by sentences')
    note = (
        f"Set {study.measure.set}: an arm's runs less the base's of their seeds, as "
        'they would be with other sentences of this kind, too. By sentences: the share '
        'of the variance that comes from which were drawn; the rest is that of seeds. '
        "Intervals and p are corrected for the number of rows (Bonferroni's method). "
        'Of one seed they tell two runs apart, and nothing of other seeds.'
    )
    title = 'Over seeds and sentences'
    return Table('over_sentences', title, names, rows, names[2:4], note)


def _paired_translations(
    study: Study, arm: Arm
) -> list[tuple[Translations, Translations]]:
    """By seed what the base and an arm make of sentences that are always the same."""
    bases = {run.seeds: run for run in study.base.scored}
    pairs: list[tuple[Translations, Translations]] = []
    for run in arm.scored:
        if run.seeds not in bases:
            continue
        of_base = reading.read_translations(bases[run.seeds], study.measure.set)
        of_arm = reading.read_translations(run, study.measure.set)
        if of_base and of_arm:
            first = pairs[0][0] if pairs else of_base
            if of_base[:2] == of_arm[:2] == first[:2]:
                pairs.append((of_base, of_arm))
    return pairs


def paired_test(
    metric: Metric,
    pairs: Sequence[tuple[Translations, Translations]],
    family: int,
    contrast: Contrast | None = None,
) -> OverSentences:
    """`analysis.over_sentences` of translations of a set.

    Args:
      metric: that scores them.
      pairs: of each seed the base's and the system's, of the same sentences.
      family, contrast: as there.
    """

    def statistics_of(found: Translations) -> list[Sequence[float]]:
        return list(metric.statistics(found.outputs, found.references, found.sources))

    both = [[statistics_of(x) for x in side] for side in zip(*pairs, strict=True)]
    base, system = (np.asarray(side, np.float64) for side in both)

    def score_of_sum(total: np.ndarray) -> float:
        return metric.score_of(total.tolist())

    return analysis.over_sentences(base, system, score_of_sum, family, contrast)


def answer(
    study: Study, found: Sequence[Comparison], contrasts: Sequence[Contrast] = ()
) -> list[str]:
    """A sentence for each declared difference, and the best arm with its mean.

    Args:
      study: whose arms they are.
      found: as `comparisons` has them.
      contrasts: as `declared` has them.
    """
    return [*(_sentence(study, x) for x in contrasts), _best(study, found)]


def _sentence(study: Study, contrast: Contrast) -> str:
    """An effect with its interval, what can be said, and what could have been seen."""
    form = functools.partial(shown, is_score=study.measure.is_of_translations)
    effect, interval, _ = cells_of(contrast)
    text = f'{contrast.arm}, from {contrast.base}: {form(effect)}'
    if interval is None:
        return f'{text}; no test can be made.'
    word = _word(study, contrast)
    text = f'{text} (95 % interval {form(interval)}): {word}'
    if word != 'no difference shown':
        return f'{text}.'
    return f'{text}, where one of {form((interval.high - interval.low) / 2)} would be.'


def _best(study: Study, found: Sequence[Comparison]) -> str:
    best = found[0]
    if best.spread is None:
        return 'No run has finished: there is no score to compare.'
    mean = shown(best.spread, study.measure.is_of_translations)
    seeds = '1 seed' if best.spread.n == 1 else f'{best.spread.n} seeds'
    return f'Best by {study.measure}: {best.arm.name}, {mean} ({seeds}).'


def costs(study: Study) -> Table:
    """Cost beside score: a row an arm, the best first; means over finished runs."""
    rows = []
    for arm in study.ranked():
        values = [arm.cost(entry) for entry in COSTS]
        rows.append((arm.name, arm.spread(study.measure), *values))
    measure = str(study.measure)
    names = ('arm', measure, *COSTS.values())
    title = 'Cost beside score'
    return Table('cost', title, names, rows, [measure])


def runs(study: Study) -> Table:
    """What decides, a row a run: all that the answer is computed of."""
    rows = []
    for arm in study.arms:
        by_seeds = arm.by_seeds(study.measure)
        rows += [
            (arm.name, run.seed, by_seeds[run.seeds])
            for run in arm.scored
            if run.seeds in by_seeds
        ]
    return Table('runs', 'Runs', ('arm', 'seed', 'score'), rows)


def scores(study: Study) -> Table:
    """Every score of every set: a row for each set and arm; means over seeds."""
    sets = dict.fromkeys(
        name for arm in study.arms for run in arm.scored for name in run.evaluations
    )
    names = [*study.metrics, *OF_MODELS]
    rows: list[tuple[Any, ...]] = []
    for name in sets:
        for arm in study.arms:
            spreads = [arm.spread(Measure(name, score)) for score in names]
            rows.append((name, arm.name, *spreads))
    columns = ('set', 'arm', *names)
    return Table('scores', 'All scores', columns, rows, study.metrics)


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
    columns = ['arm']
    for name in names:
        columns += [f'{name}, published', f'{name}, here']
    rows: list[list[Any]] = []
    for arm in study.arms:
        of_source = numbers.get(arm.name, {})
        row: list[Any] = [arm.name]
        for name in names:
            measure = Measure(study.measure.set, name)
            is_score = name in (*study.metrics, *OF_MODELS)
            here = arm.spread(measure) if is_score else arm.cost(name)
            row += [of_source.get(name), here]
        rows.append(row)
    decimals = [name for name in columns if name.startswith(tuple(study.metrics))]
    return Table('published', 'Beside what was published', columns, rows, decimals)

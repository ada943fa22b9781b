"""The answer of a report: arms ranked, and whether their differences can be chance.

Beside it all scores, their cost, and what was published.
"""

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

from experiments.command_line import console
from experiments.metrics.base import OF_MODELS, Metric
from experiments.reports import analysis
from experiments.reports.analysis import LEVEL, Contrast, OverSentences
from experiments.reports.arms import Arm, Measure, Study, metric_of
from experiments.reports.tables import Table, cells_of, permuted, shown
from experiments.runs import reading
from experiments.runs.reading import Translations

Paired = tuple[Translations, Translations]  # of one seed: the base's, the system's
COSTS = {
    'parameters': 'parameters',
    'flops_per_token': 'FLOPs a token',
    'training_flops': 'training FLOPs',
    'train_seconds': 'training seconds',
    'tokens_per_second': 'tokens a second',
    'peak_memory_bytes': 'peak memory, bytes',
}
OTHER_SENTENCES = (
    'These intervals also allow for other test sentences, so they differ from those of '
    'the answer, which holds for this test set.'
)
NOTHING_ACROSS_SEEDS = 'one seed: nothing can be said across seeds'


def from_base(study: Study) -> dict[str, Contrast]:
    """Arm → how far it is above the base of its data, of arms with scores.

    Those of a data set stand together, the best first.
    """
    scores = study.scores()
    bases = study.bases
    pairs = analysis.pairs_with(bases, scores)
    looks = study.sweep.looks
    found = analysis.compare(scores, contrasts=pairs, looks=looks, data=bases)
    return {contrast.arm: contrast for contrast in found}


def declared(study: Study) -> list[Contrast]:
    """The differences that a sweep's file names as its question, as far as there."""
    sweep = study.sweep
    scores = study.scores()
    pairs = [pair for pair in sweep.contrasts if scores.keys() >= set(pair)]
    return analysis.compare(
        scores,
        contrasts=pairs,
        margin=sweep.margin or None,
        looks=sweep.looks,
        data=sweep.bases(sweep.base),
    )


def verdict(study: Study, arm: Arm, contrast: Contrast | None) -> str:
    """What can be said of an arm, in words.

    'better' and 'worse' are said of a difference that is significant, by the direction
    of the measure: of a loss, less is better.

    Args:
      study: whose arm it is, of the arm's data alone.
      arm: the arm.
      contrast: of the arm, if `from_base` has one.
    """
    seeds = len(arm.by_seeds(study.measure))
    if not seeds:
        return 'no finished run'
    if arm is study.base:
        return 'the base'
    if contrast is None:
        return 'the base has no finished run'
    if contrast.p is not None:
        return _word(study, contrast)
    if min(seeds, len(study.base.by_seeds(study.measure))) < 2:
        return NOTHING_ACROSS_SEEDS
    return 'the seeds do not differ: no test can be made'


def _word(study: Study, contrast: Contrast) -> str:
    if contrast.significant:
        rises = contrast.effect > 0
        return 'better' if rises == study.measure.higher_is_better else 'worse'
    if contrast.equivalent:
        return 'equivalent'
    return 'no difference shown'


def answer_table(
    study: Study, contrasts: Mapping[str, Contrast], asked: Sequence[Contrast]
) -> Table:
    """Returns the table `answer`: the declared differences, or else all from the base.

    Args:
      study: What is compared.
      contrasts: The result of `from_base`.
      asked: The result of `declared`.
    """
    if asked:
        table = _differences(study, asked)
    else:
        table = ranking(study, contrasts)
        if study.sweep.contrasts:
            note = f'{table.note} The declared differences have no scores yet.'
            table = table._replace(note=note)
    looks = study.sweep.looks
    if looks == 1:
        return table
    # `--recompute` has no sweep that says it.
    rows = [(*row, looks) for row in table.rows]
    return table._replace(columns=(*table.columns, 'looks'), rows=rows)


def _differences(study: Study, asked: Sequence[Contrast]) -> Table:
    """Returns a row for each declared difference."""
    decimals = ('difference', '95 % interval', 'detectable')
    columns = ('arm', 'from', 'seeds', *decimals, 'p', 'p, permuted', 'verdict')
    rows = []
    for x in asked:
        effect, interval, p = cells_of(x)
        said = 'no test can be made' if p is None else _word(study, x)
        test = (effect, interval, x.detectable, p, permuted(x), said)
        rows.append((x.arm, x.base, x.seeds, *test))
    note = (
        'Difference: adjusted for seeds, which the arms share. The intervals of this '
        'table hold simultaneously, and p is adjusted for all of its rows. Detectable: '
        'the minimum detectable difference at a power of 80 %. Permuted: p by '
        'exchanging arms within seeds, which assumes no normal errors.'
    )
    scores = decimals if study.measure.is_of_translations else ()
    return Table('answer', 'Declared differences', columns, rows, scores, note)


def arms(study: Study) -> Table:
    """Returns the arms with their scores, the best first."""
    rows = [(arm.name, arm.spread(study.measure)) for arm in study.ranked()]
    measure = str(study.measure)
    scores = (measure,) if study.measure.is_of_translations else ()
    note = 'Mean ± standard deviation over seeds.'
    title = 'Arms, the best first'
    return Table('arms', title, ('arm', measure), rows, scores, note)


def exploratory(study: Study, contrasts: Mapping[str, Contrast]) -> Table | None:
    """Returns the differences from the base that a sweep does not declare.

    Args:
      study: What is compared.
      contrasts: The result of `from_base`.

    Returns:
      None where all are declared.
    """
    asked = set(map(frozenset, study.sweep.contrasts))
    others = {arm: x for arm, x in contrasts.items() if {x.arm, x.base} not in asked}
    if not others:
        return None
    table = ranking(study, contrasts)
    return table._replace(
        name='exploratory',
        title='Other differences from the base',
        rows=[row for row in table.rows if row[0] in others],
        aside=(
            'They are exploratory: the sweep does not declare them. Their intervals '
            'belong to the comparison of all arms with the base.'
        ),
    )


def ranking(study: Study, contrasts: Mapping[str, Contrast]) -> Table:
    """The table of the answer: a row an arm, with its test against the base.

    Args:
      study: whose arms they are.
      contrasts: as `from_base` has them.
    """
    decimals = (str(study.measure), 'difference', '95 % interval')
    columns = ['arm', 'seeds', *decimals, 'p', 'p, permuted', 'verdict']
    parts = study.by_data
    are_several = len(parts) > 1
    rows = []
    for part in parts:
        for arm in part.ranked():
            contrast = contrasts.get(arm.name)
            test = (None, None, None, None)
            if contrast is not None:
                test = (*cells_of(contrast), permuted(contrast))
            seeds = len(arm.by_seeds(study.measure))
            mean = arm.spread(study.measure)
            said = verdict(part, arm, contrast)
            row = [arm.name, seeds, mean, *test, said]
            if are_several:
                row.append(part.base.name)
            rows.append(row)
    note = (
        'Mean ± standard deviation over seeds. Difference: from the base, without what '
        'a seed brings to all arms alike (blocked by seed, where arms share them). The '
        "intervals hold together, by Dunnett's method: p is that of the whole family, "
        f'and an arm is better or worse where it is below {LEVEL}. Permuted: p by '
        'exchanging arms within seeds, for which errors need not be normal.'
    )
    if are_several:
        columns.append('from')
        note += (
            ' Data sets stand one after another, each beside the base on its own data, '
            'whose runs alone tell its chance; they share the error rate.'
        )
    scores = decimals if study.measure.is_of_translations else ()
    return Table('answer', 'Arms, the best first', columns, rows, scores, note)


def over_sentences(study: Study, contrasts: Sequence[Contrast]) -> Table | None:
    """Returns the same differences over other seeds and other sentences at once.

    Args:
      study: What is compared.
      contrasts: The differences of the answer.

    Returns:
      None where the measure is no score of translations, or nothing can be paired.

    Raises:
      UserError: Translations cannot be read.
    """
    if not study.measure.is_of_translations:
        return None
    by_name = {arm.name: arm for arm in study.arms}
    pairs = {}
    for contrast in contrasts:
        base, arm = by_name[contrast.base], by_name[contrast.arm]
        found = _paired_translations(study, base, arm)
        if found:
            pairs[contrast] = found
            metric = metric_of(base.scored[0], study.measure)
    if not pairs:
        return None
    bases = {contrast.base for contrast in pairs}
    rows = []
    for contrast, found in pairs.items():
        # Its error is that of more seeds than are paired.
        known = contrast if contrast.seeds == len(found) else None
        family = len(pairs) * study.sweep.looks
        test = paired_test(metric, found, family, known)
        share = None
        if test.share is not None:
            share = f'{test.share:.0%}'
        row = [contrast.arm, len(found), *cells_of(test), share]
        if len(bases) > 1:
            row.append(contrast.base)
        rows.append(row)
    names = ['arm', 'seeds', 'difference', '95 % interval', 'p', 'by sentences']
    if len(bases) > 1:
        names.append('from')
    note = (
        f"Set {study.measure.set}: an arm's runs less the base's of their seeds, as "
        'they would be with other sentences of this kind, too. By sentences: the share '
        'of the variance that comes from which were drawn; the rest is that of seeds. '
        "Intervals and p are corrected for the number of rows (Bonferroni's method). "
        'Of one seed they tell two runs apart, and nothing of other seeds.'
    )
    title = 'Over seeds and sentences'
    return Table(
        'over_sentences', title, names, rows, names[2:4], note, aside=OTHER_SENTENCES
    )


def _paired_translations(study: Study, base: Arm, arm: Arm) -> list[Paired]:
    """By seed what two arms make of sentences that are always the same."""
    name = study.measure.set
    bases = {run.seeds: run for run in base.scored}
    pairs: list[Paired] = []
    for run in arm.scored:
        if run.seeds not in bases:
            continue
        of_base = reading.read_translations(bases[run.seeds], name)
        of_arm = reading.read_translations(run, name)
        if of_base is None or of_arm is None:
            continue
        pairs.append((of_base, of_arm))
        first, _ = pairs[0]
        if not of_base[:2] == of_arm[:2] == first[:2]:
            pairs.pop()
    return pairs


def paired_test(
    metric: Metric,
    pairs: Sequence[Paired],
    family: int,
    contrast: Contrast | None = None,
) -> OverSentences:
    """`analysis.over_sentences` of translations of a set.

    Args:
      metric: that scores them.
      pairs: of each seed the base's and the system's, of the same sentences.
      family, contrast: as there.
    """
    sides = [
        [metric.statistics(x.outputs, x.references, x.sources) for x in side]
        for side in zip(*pairs, strict=True)
    ]
    base, system = np.array(sides, float)

    def score_of_sum(total):
        return metric.score_of(total.tolist())

    return analysis.over_sentences(base, system, score_of_sum, family, contrast)


def answer(study: Study, contrasts: Sequence[Contrast] = ()) -> list[str]:
    """A sentence for each declared difference, and what no table tells.

    Args:
      study: whose arms they are.
      contrasts: as `declared` has them.
    """
    lines = [_sentence(study, contrast) for contrast in contrasts]
    if contrasts and study.sweep.factor_of_data:
        lines.append(
            'Each difference is estimated from the runs of its own data alone, for '
            'seeds and chance differ between data sets; the intervals of all hold '
            'together.'
        )
    if not study.scores():
        lines.append('No run has finished: there is no score to compare.')
    if study.sweep.until is not None:
        ended = study.sweep.ended or 'results may still bring more'
        lines.append(f'Seeds: {ended}. Intervals allow for every look at them.')
    return lines


def _sentence(study: Study, contrast: Contrast) -> str:
    """An effect with its interval, its verdict and what the design could detect."""
    form = console.score if study.measure.is_of_translations else console.cell
    effect, interval, _ = cells_of(contrast)
    text = f'{contrast.arm}, from {contrast.base}: {shown(effect, form)}'
    if interval is None:
        return f'{text}; no test can be made.'
    word = _word(study, contrast)
    text = f'{text} (95 % interval {shown(interval, form)}): {word}'
    if word != 'no difference shown':
        return f'{text}.'
    detectable = shown(contrast.detectable, form)
    return f'{text} (minimum detectable difference: {detectable}).'


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
    """What decides, a row a run: all that the answer is computed of.

    Where data are a factor, `data` is the level: arms of one level share their errors.
    """
    factor = study.sweep.factor_of_data
    rows = []
    for arm in study.arms:
        by_seeds = arm.by_seeds(study.measure)
        for run in arm.scored:
            if run.seeds not in by_seeds:
                continue
            row = [arm.name, run.seed, by_seeds[run.seeds]]
            if factor is not None:
                row.append(study.sweep.levels[arm.name][factor])
            rows.append(row)
    columns = ['arm', 'seed', 'score']
    if factor is not None:
        columns.append('data')
    return Table('runs', 'Runs', columns, rows)


def scores(study: Study) -> Table:
    """Every score of every set: a row for each set and arm; means over seeds."""
    counted = [run for arm in study.arms for run in arm.scored]
    sets = dict.fromkeys(chain(*[run.evaluations for run in counted]))
    names = [*study.metrics, *OF_MODELS]
    rows = []
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
    rows = []
    for arm in study.arms:
        numbers = study.sweep.published.get(arm.name, {})
        for name, number in numbers.items():
            score = Measure(study.measure.set, name)
            here = arm.spread(score) or arm.cost(name)
            rows.append((arm.name, name, number, here))
    if not rows:
        return None
    columns = ('arm', 'of', 'published', 'here')
    return Table('published', 'Beside what was published', columns, rows)

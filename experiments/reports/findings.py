"""The answer of a report, and its tables."""

import collections
from collections.abc import Mapping, Sequence
from itertools import chain, combinations
from statistics import fmean
from typing import Any

import numpy as np

from experiments.command_line import console
from experiments.evaluation.measure import Measure
from experiments.metrics.base import MODEL_SCORES, Metric, score_decimals
from experiments.reports.arms import (
    Arm,
    Study,
    find_metric,
    lower_is_better,
    run_cost,
    run_score,
)
from experiments.reports.tables import (
    Table,
    column_decimals,
    contrast_cells,
    format_cell,
    permutation_p,
)
from experiments.runs import reading
from experiments.runs.reading import Entries, Translations
from experiments.sweeps import analysis, planning
from experiments.sweeps.analysis import LEVEL, Contrast, SentenceDifference

Paired = tuple[Translations, Translations]  # of one seed: base, system
COSTS = {
    'parameters': 'parameters',
    'flops_per_token': 'FLOPs per token',
    'training_flops': 'training FLOPs',
    'train_seconds': 'training seconds',
    'tokens_per_second': 'tokens per second',
    'peak_memory_bytes': 'peak memory, bytes',
}
RUN_COSTS = ('train_seconds', 'train_cpu_seconds', 'parameters', 'training_flops')
ANSWER = 'answer.json'  # in the folder of a report
OTHER_SENTENCES = (
    'These intervals also include the variance from sampling test sentences. The '
    'intervals of the answer hold for this test set alone.'
)
_RANK_NOTE = (
    'Rank: 1–3 if two arms may be better, by simultaneous intervals of all pairs.'
)
_MAX_RANKED = 30  # the tests of all pairs of 45 arms take a minute and 1 GB
NO_TEST = 'not testable'
NOT_SIGNIFICANT = 'not significant'
ONE_SEED = f'{NO_TEST}: only one seed'


def from_base(study: Study) -> dict[str, Contrast]:
    """Returns each scored arm's difference from its base, in the order of `ranked`."""
    scores = study.scores()
    bases = study.bases
    found = analysis.compare(
        scores,
        contrasts=analysis.pairs_with(bases, scores),
        margin=margins(study),
        design=study.design(),
        data=bases,
    )
    return {contrast.arm: contrast for contrast in found}


def declared_contrasts(study: Study) -> list[Contrast]:
    """Computes the contrasts that the sweep declares, if both arms have scores."""
    sweep = study.sweep
    scores = study.scores()
    pairs = [pair for pair in sweep.contrasts if scores.keys() >= set(pair)]
    return analysis.compare(
        scores,
        contrasts=pairs,
        margin=margins(study),
        design=study.design(),
        data=sweep.bases(sweep.base),
    )


def margins(study: Study) -> dict[str, float]:
    """Returns the smallest difference that matters next to each arm, if declared."""
    sweep = study.sweep
    found = {}
    if not study.decides:
        return found  # the margin is declared for another score
    for arm, by_seeds in study.scores().items():
        margin = planning.margin(sweep, fmean(by_seeds.values()))
        if margin is not None:
            found[arm] = margin
    return found


def verdict(study: Study, arm: Arm, contrast: Contrast | None) -> str:
    """Returns the verdict on an arm of a study with one data set."""
    seeds = len(arm.by_seeds(study.measure))
    if not seeds:
        return _missing(study, arm)
    if arm is study.base:
        return 'base'
    if contrast is None:
        return f'the base has {_missing(study, study.base)}'
    fewest = min(seeds, len(study.base.by_seeds(study.measure)))
    return verdict_with_base(study.measure, contrast, fewest)


def verdict_with_base(measure: Measure, contrast: Contrast, seeds: int) -> str:
    """Returns the verdict on a difference, or why it has no test.

    Args:
      seeds: The smaller number of seeds, of the arm or its base.
    """
    if contrast.p is not None:
        return contrast_verdict(measure, contrast)
    if seeds < 2:
        return ONE_SEED
    return f'{NO_TEST}: no variance between seeds'


def _missing(study: Study, arm: Arm) -> str:
    return f'no score for {study.measure}' if arm.scored else 'no finished run'


def verdicts(study: Study, contrasts: Mapping[str, Contrast]) -> dict[Contrast, str]:
    return {
        contrasts[arm.name]: verdict(part, arm, contrasts[arm.name])
        for part in study.by_data
        for arm in part.arms
        if arm.name in contrasts
    }


def contrast_verdict(measure: Measure, contrast: Contrast) -> str:
    if contrast.p is None:
        return NO_TEST
    if contrast.significant:
        rises = contrast.effect > 0
        return 'better' if rises == measure.higher_is_better else 'worse'
    if contrast.equivalent:
        return 'equivalent'
    return NOT_SIGNIFICANT


def entries(contrast: Contrast, verdict: str) -> Entries:
    """Returns a contrast with its verdict, for JSON."""
    more = {'detectable': contrast.detectable, 'verdict': verdict}
    return contrast._asdict() | more


def answer_table(
    study: Study, contrasts: Mapping[str, Contrast], declared: Sequence[Contrast]
) -> Table:
    """Returns the table `answer`: declared contrasts, or else all arms and the base."""
    if declared:
        table = differences(study.measure, declared)
    else:
        table = _with_ranks(study, ranking(study, contrasts))
        if study.sweep.contrasts:
            note = f'{table.note} The declared contrasts have no scores yet.'
            table = table._replace(note=note)
    return with_design(table, study.margin, study.sweep.looks)


def with_design(table: Table, margin: float | None, looks: int) -> Table:
    """Returns the table with the columns `margin` and `looks`, if there are any."""
    stated = {}
    if margin is not None:
        stated['margin'] = margin
    if looks > 1:
        stated['looks'] = looks
    rows = [(*row, *stated.values()) for row in table.rows]
    return table._replace(columns=(*table.columns, *stated), rows=rows)


def _with_ranks(study: Study, table: Table) -> Table:
    ranks_by_arm = ranks(study)
    rows = [(arm, ranks_by_arm.get(arm), *cells) for arm, *cells in table.rows]
    arm, *columns = table.columns
    note = f'{_RANK_NOTE} {table.note}'
    return table._replace(columns=(arm, 'rank', *columns), rows=rows, note=note)


def further_answers(study: Study) -> list[Table]:
    """Returns the table of the answer for each further measure."""
    found = []
    for measure in study.further:
        part = study._replace(measure=measure)
        table = answer_table(part, from_base(part), declared_contrasts(part))
        note = f'{study.measure} decides; {measure} does not. {table.note}'
        if study.sweep.tune is not None:
            note += (
                ' The intervals do not include the choice of tuned values, because '
                f'{study.sweep.measure.score} chose them.'
            )
        table = table._replace(
            name=answer_name(study.measure, measure),
            title=f'{table.title}: {measure}',
            note=note,
        )
        found.append(table)
    return found


def answer_name(decides: Measure, further: Measure) -> str:
    """Returns the name of the table of a further measure: `answer_bleu`."""
    if further.set == decides.set:
        return f'answer_{further.score}'
    return f'answer_{further.set}_{further.score}'


def differences(measure: Measure, contrasts: Sequence[Contrast]) -> Table:
    """Returns the table `answer` of contrasts."""
    measured = ('difference', '95% CI', 'minimum detectable')
    columns = ('arm', 'base', 'seeds', *measured, 'p', 'permutation p', 'verdict')
    rows = []
    for x in contrasts:
        effect, interval, p = contrast_cells(x)
        text = contrast_verdict(measure, x)
        test = (effect, interval, x.detectable, p, permutation_p(x), text)
        rows.append((x.arm, x.base, x.seeds, *test))
    note = (
        'Differences are adjusted for seeds, which the arms share. Confidence '
        'intervals are simultaneous, and p is adjusted for all rows of this table. '
        'Minimum detectable: the true difference that is significant with a power of '
        '80%. Permutation p: arms exchanged within seeds, without assuming normal '
        'errors.'
    )
    decimals: dict[str, int] = dict.fromkeys(measured, measure.decimals)
    return Table('answer', 'Declared contrasts', columns, rows, decimals, note)


def arms(study: Study) -> Table:
    ranks_by_arm = ranks(study)
    rows = [
        (arm.name, ranks_by_arm.get(arm.name), arm.spread(study.measure))
        for arm in study.ranked()
    ]
    measure = str(study.measure)
    decimals = {measure: study.measure.decimals}
    note = f'{_RANK_NOTE} Mean ± standard deviation over seeds.'
    columns = ('arm', 'rank', measure)
    return Table('arms', 'Arms, best first', columns, rows, decimals, note)


def ranks(study: Study) -> dict[str, str]:
    """Returns each arm's rank among those on its data: `1–3` if it is tied.

    It reaches from 1 + the number of significantly better arms to the number of arms
    minus that of significantly worse ones. Arms without a test have no rank, nor have
    more than `_MAX_RANKED` arms.
    """
    scores = study.scores()
    parts = [[arm.name for arm in x.arms if arm.name in scores] for x in study.by_data]
    if max(map(len, parts), default=0) > _MAX_RANKED:
        return {}
    pairs = list(chain(*[combinations(names, 2) for names in parts]))
    design, bases = study.design(), study.bases
    found = analysis.compare(scores, contrasts=pairs, design=design, data=bases)
    better = collections.Counter()  # number of arms that are better than this one
    worse = collections.Counter()
    for contrast in found:
        order = [contrast.arm, contrast.base]
        if contrast_verdict(study.measure, contrast) == 'worse':
            order.reverse()
        if contrast.significant:
            worse[order[0]] += 1
            better[order[1]] += 1
    tested = set(chain(*[x[:2] for x in found if x.p is not None]))
    ranks_by_arm = {}
    for names in parts:
        for name in tested.intersection(names):
            first, last = 1 + better[name], len(names) - worse[name]
            ranks_by_arm[name] = f'{first}–{last}' if first < last else str(first)
    return ranks_by_arm


def undeclared(study: Study, contrasts: Mapping[str, Contrast]) -> dict[str, Contrast]:
    declared = set(map(frozenset, study.sweep.contrasts))
    return {arm: x for arm, x in contrasts.items() if {x.arm, x.base} not in declared}


def exploratory(study: Study, contrasts: Mapping[str, Contrast]) -> Table | None:
    """Returns the differences from the base that a sweep does not declare."""
    others = undeclared(study, contrasts)
    if not others:
        return None
    table = ranking(study, contrasts)
    return table._replace(
        name='exploratory',
        title='Other comparisons with the base',
        rows=[row for row in table.rows if row[0] in others],
        aside=(
            'Exploratory: the sweep does not declare these contrasts. The intervals '
            'are simultaneous for all comparisons with the base.'
        ),
    )


def ranking(study: Study, contrasts: Mapping[str, Contrast]) -> Table:
    """Returns each arm with its test against the base, the best first."""
    measured = (str(study.measure), 'difference', '95% CI')
    columns = ['arm', 'seeds', *measured, 'p', 'permutation p', 'verdict']
    parts = study.by_data
    are_several = len(parts) > 1
    rows = []
    for part in parts:
        for arm in part.ranked():
            contrast = contrasts.get(arm.name)
            test = (None, None, None, None)
            if contrast is not None:
                test = (*contrast_cells(contrast), permutation_p(contrast))
            seeds = len(arm.by_seeds(study.measure))
            mean = arm.spread(study.measure)
            text = verdict(part, arm, contrast)
            row = [arm.name, seeds, mean, *test, text]
            if are_several:
                row.append(part.base.name)
            rows.append(row)
    note = (
        'Mean ± standard deviation over seeds. Differences from the base are blocked '
        'by seed if the arms share seeds. Confidence intervals are simultaneous '
        "(Dunnett's method), and p is adjusted for all arms. A difference is "
        f'significant if p < {LEVEL}. Permutation p: arms exchanged within seeds, '
        'without assuming normal errors.'
    )
    if are_several:
        columns.append('base')
        note += (
            ' Each data set is compared with the base on the same data, with its own '
            'error variance. The data sets share the error rate (Bonferroni).'
        )
    decimals = dict.fromkeys(measured, study.measure.decimals)
    return Table('answer', 'Arms, best first', columns, rows, decimals, note)


def sentence_tests(
    study: Study, contrasts: Sequence[Contrast]
) -> dict[Contrast, tuple[int, SentenceDifference]]:
    """Tests the same differences over seeds and sentences at once.

    Returns the number of seeds and the test of each contrast with paired runs; empty
    without a translation metric.
    """
    if not study.measure.is_of_translations:
        return {}
    by_name = {arm.name: arm for arm in study.arms}
    pairs = {}
    for contrast in contrasts:
        base, arm = by_name[contrast.base], by_name[contrast.arm]
        found = _paired_translations(study, base, arm)
        if found:
            pairs[contrast] = found
            metric = find_metric(base.scored[0], study.measure, study.trust_code)
    tests = {}
    for contrast, found in pairs.items():
        # The contrast's error applies only if all of its seeds are paired.
        known = contrast if contrast.seeds == len(found) else None
        family = len(pairs) * study.sweep.looks
        tests[contrast] = len(found), paired_test(metric, found, family, known)
    return tests


def over_sentences(study: Study, contrasts: Sequence[Contrast]) -> Table | None:
    tests = sentence_tests(study, contrasts)
    if not tests:
        return None
    bases = {contrast.base for contrast in tests}
    rows = []
    for contrast, (seeds, test) in tests.items():
        share = None if test.share is None else f'{test.share:.0%}'
        row = [contrast.arm, seeds, *contrast_cells(test), share]
        if len(bases) > 1:
            row.append(contrast.base)
        rows.append(row)
    names = ['arm', 'seeds', 'difference', '95% CI', 'p', 'sentence share']
    if len(bases) > 1:
        names.append('base')
    note = (
        f'Set {study.measure.set}, with runs paired by seed. The variance over '
        'sentences (jackknife) is added to that over seeds. Sentence share: the part '
        'of the variance that comes from the choice of sentences; the rest comes from '
        'seeds. Intervals and p are corrected for the number of rows (Bonferroni). '
        'With one seed they compare two runs, not two arms.'
    )
    title = 'Over seeds and sentences'
    decimals = dict.fromkeys(names[2:4], study.measure.decimals)
    return Table('over_sentences', title, names, rows, decimals, note, OTHER_SENTENCES)


def _paired_translations(study: Study, base: Arm, arm: Arm) -> list[Paired]:
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
        first = pairs[0][0] if pairs else of_base
        if of_base[:2] == of_arm[:2] == first[:2]:
            pairs.append((of_base, of_arm))
    return pairs


def paired_test(
    metric: Metric,
    pairs: Sequence[Paired],
    family: int,
    contrast: Contrast | None = None,
) -> SentenceDifference:
    """Tests the translations of a base and a system, a pair for each seed."""
    sides = [
        [metric.statistics(x.outputs, x.references, x.sources) for x in side]
        for side in zip(*pairs, strict=True)
    ]
    base, system = np.array(sides, float)

    def score_of_sum(total):
        return metric.score_of(total.tolist())

    return analysis.over_sentences(base, system, score_of_sum, family, contrast)


def answer(study: Study, contrasts: Sequence[Contrast] = ()) -> list[str]:
    """Returns a sentence for each declared contrast, and notes that tables lack."""
    lines = [sentence(study.measure, contrast) for contrast in contrasts]
    if contrasts and study.sweep.factor_of_data:
        lines.append(
            'Each difference is estimated from the runs on its own data, because '
            'seed effects and errors differ between data sets. The confidence '
            'intervals are simultaneous across all data sets.'
        )
    if not study.scores():
        if any(arm.scored for arm in study.arms):
            lines.append(f'No finished run has a score for {study.measure}.')
        else:
            lines.append('No run has finished, so there are no scores to compare.')
    if study.sweep.until is not None:
        ended = study.sweep.ended or 'further seeds may follow'
        lines.append(f'Seeds: {ended}. Intervals are corrected for all looks.')
    earlier = study.sweep.earlier_looks
    if earlier:
        reports = console.count_noun(earlier, 'earlier report')
        lines.append(
            f'Looks: {study.sweep.looks}, because {reports} analyzed fewer seeds '
            f'({study.sweep.logs}/looks.json). Intervals are corrected for all looks.'
        )
    return lines


def sentence(measure: Measure, contrast: Contrast) -> str:
    """Returns the answer to a declared contrast."""
    form = console.number_form(measure.decimals)
    effect, interval, _ = contrast_cells(contrast)
    word = contrast_verdict(measure, contrast)
    facts = f'difference {format_cell(effect, form)}'
    if interval is not None:
        facts += f', 95% CI {format_cell(interval, form)}'
    if word == NOT_SIGNIFICANT:
        detectable = format_cell(contrast.detectable, form)
        facts += f'; minimum detectable difference {detectable}'
    return f'{contrast.arm} compared with {contrast.base}: {word} ({facts}).'


def costs(study: Study) -> Table:
    rows = []
    for arm in study.ranked():
        values = [arm.cost(entry) for entry in COSTS]
        rows.append((arm.name, arm.spread(study.measure), *values))
    measure = str(study.measure)
    names = ('arm', measure, *COSTS.values())
    decimals = column_decimals(names, rows) | {measure: study.measure.decimals}
    return Table('cost', 'Score and cost', names, rows, decimals)


def runs(study: Study) -> Table:
    """Returns the scores and costs of each run, the deciding score first.

    `--recompute` gets the answer from it. Columns without a value are left out.
    """
    factor = study.sweep.factor_of_data
    sets, names = _sets(study), [*study.metrics, *MODEL_SCORES]
    measures = [Measure(of_set, score) for of_set in sets for score in names]
    rows = []
    for arm in study.arms:
        for run in arm.scored:
            row: dict[str, Any] = {'arm': arm.name, 'seed': run.seed}
            row['score'] = run_score(run, study.measure)
            if factor is not None:
                row['data'] = study.sweep.levels[arm.name][factor]
            row |= {str(measure): run_score(run, measure) for measure in measures}
            row |= {entry: run_cost(run, entry) for entry in RUN_COSTS}
            rows.append(row)
    known = {name for row in rows for name in row if row[name] is not None}
    known |= {'arm', 'seed', 'score'}
    columns = [name for name in (rows[0] if rows else known) if name in known]
    cells = [[row[name] for name in columns] for row in rows]
    return Table('runs', 'Runs', columns, cells)


def _sets(study: Study) -> list[str]:
    counted = [run for arm in study.arms for run in arm.scored]
    return list(dict.fromkeys(chain(*[run.evaluations for run in counted])))


def scores(study: Study) -> Table:
    counted = [run for arm in study.arms for run in arm.scored]
    names = [*study.metrics, *MODEL_SCORES]
    rows = []
    for name in _sets(study):
        for arm in study.arms:
            spreads = [arm.spread(Measure(name, score)) for score in names]
            rows.append((name, arm.name, *spreads))
    columns = ('set', 'arm', *names)
    lower = lower_is_better(counted)
    note = f'Lower is better: {", ".join(name for name in names if name in lower)}.'
    decimals = score_decimals(*names)
    return Table('scores', 'All scores', columns, rows, decimals, note)


def published(study: Study) -> Table | None:
    rows = []
    for arm in study.arms:
        numbers = study.sweep.published.get(arm.name, {})
        for name, number in numbers.items():
            score = Measure(study.measure.set, name)
            here = arm.spread(score) or arm.cost(name)
            test = (None, None, None)
            if here is not None:
                test = contrast_cells(analysis.from_number(here, number))
            rows.append((arm.name, name, number, here, *test))
    if not rows:
        return None
    measured = ('measured here', 'difference', '95% CI', 'p')
    columns = ('arm', 'score', 'published', *measured)
    note = (
        'Interval and p are those of a t test over seeds, for each row on its own. The '
        'published number counts as exact.'
    )
    title = 'Published and measured scores'
    return Table('published', title, columns, rows, note=note)


def departures(study: Study) -> Table | None:
    """Returns how arms differ from the forms that their papers describe."""
    of_texts = collections.defaultdict(list)
    for arm, text in study.sweep.departures.items():
        of_texts[text].append(arm)
    if not of_texts:
        return None
    rows = [('; '.join(arms), text) for text, arms in of_texts.items()]
    columns = ('arms', 'differs from the paper in')
    return Table('departures', 'Departures from the papers', columns, rows)

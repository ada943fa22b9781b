"""Recomputes the answer of a report from its `answer.json` and its runs' scores."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from experiments import storage
from experiments.command_line import console
from experiments.errors import UserError, user_errors
from experiments.evaluation.measure import Measure
from experiments.reports import findings
from experiments.runs.reading import Entries
from experiments.sweeps import analysis, score_files
from experiments.sweeps.analysis import Contrast, Design, Trials

_REWRITE = 'Write the report again with --out.'
_Positive = Annotated[float, msgspec.Meta(gt=0)]
_CONTRAST_ENTRIES = {  # column of a table → entry of a contrast
    'difference': 'effect',
    '95% CI low': 'low',
    '95% CI high': 'high',
    'minimum detectable': 'detectable',
    'p': 'p',
    'permutation p': 'permuted',
    'verdict': 'verdict',
}


class _Measure(msgspec.Struct):
    set: str
    score: str
    higher_is_better: bool


class _Pair(msgspec.Struct):
    arm: str
    base: str


class _StoredPart(msgspec.Struct, kw_only=True):
    measure: _Measure
    declared: bool
    contrasts: list[_Pair]
    exploratory: list[_Pair]


class _Trials(msgspec.Struct):
    arm: str
    means: list[float]
    number: _Positive


class _Effect(msgspec.Struct):
    factors: list[str]


class _Arm(msgspec.Struct):
    name: str
    base: str
    levels: dict
    score: dict | None
    costs: dict


class _Answer(_StoredPart, kw_only=True):
    looks: _Positive
    blocks: bool
    margin: _Positive | None
    margin_share: _Positive | None
    trials: list[_Trials]
    further: list[_StoredPart]
    effects: list[_Effect]
    arms: list[_Arm]


class Mismatch(NamedTuple):
    """A value of a report that does not follow from its runs."""

    file: str
    row: str
    column: str
    stored: Any
    recomputed: Any


class RecomputedAnswer(NamedTuple):
    """The recomputed answer of a report.

    Attributes:
      answer: As in `answer.json`.
      contrasts: Its contrasts of the deciding measure.
      runs: The rows of `tables/runs.csv`.
    """

    answer: Entries
    contrasts: list[Contrast]
    mismatches: list[Mismatch]
    runs: list[dict[str, str]]


class _MeasureAnswer(NamedTuple):
    """The recomputed comparison of the arms by one measure."""

    measure: Measure
    scores: score_files.Scores
    answer: list[tuple[Contrast, str]]  # with verdicts
    exploratory: list[tuple[Contrast, str]]

    def as_entries(self) -> Entries:
        return {
            'contrasts': [findings.entries(*x) for x in self.answer],
            'exploratory': [findings.entries(*x) for x in self.exploratory],
        }


def recompute(folder: Path) -> RecomputedAnswer:
    """Recomputes the answer of the report in a folder, and compares its tables."""
    answer = _read_answer(folder / findings.ANSWER)
    runs = score_files.read_rows(folder / 'tables/runs.csv', score_files.COLUMNS)
    with user_errors(f'{folder / findings.ANSWER}: '):
        of_decider = _measure_answer(answer, answer, score_files.by_arm(runs, 'score'))
        further = []
        for stored in answer['further']:
            column = str(Measure(**stored['measure']))
            further.append(
                _measure_answer(answer, stored, score_files.by_arm(runs, column))
            )
    found = answer | of_decider.as_entries()
    found['further'] = [
        stored | part.as_entries()
        for stored, part in zip(answer['further'], further, strict=True)
    ]
    found['arms'] = _arms(answer['arms'], of_decider.scores)
    found['effects'] = _effects(answer, of_decider.scores)
    mismatches = [
        *_answer_mismatches(answer, found),
        *_table_mismatches(folder, 'answer', found, of_decider, of_decider.answer),
        *_table_mismatches(
            folder, 'exploratory', found, of_decider, of_decider.exploratory
        ),
    ]
    for part in further:
        name = findings.answer_name(of_decider.measure, part.measure)
        stated = found | {'margin': None}
        mismatches += _table_mismatches(folder, name, stated, part, part.answer)
    contrasts = [contrast for contrast, _ in of_decider.answer]
    return RecomputedAnswer(found, contrasts, mismatches, runs)


def _read_answer(file: Path) -> Entries:
    if not storage.exists(file):
        raise UserError(f'{file}: not found. {_REWRITE}')
    return storage.read_json(file, _Answer, _REWRITE)


def _margin(answer: Entries) -> float | dict[str, float] | None:
    """Returns the margin; that of each base if it is a share of its error."""
    if not answer['margin_share']:
        return answer['margin']
    contrasts = [*answer['contrasts'], *answer['exploratory']]
    return {x['base']: x['margin'] for x in contrasts if x.get('margin') is not None}


def _measure_answer(
    answer: Entries, stored: Entries, known: score_files.Scores
) -> _MeasureAnswer:
    """Recomputes the contrasts of one measure, the deciding or a further one."""
    measure = Measure(**stored['measure'])
    design = Design(answer['looks'], answer['blocks'])
    margin = None
    if stored is answer:
        design = design._replace(trials=_trials(answer['trials'], measure))
        margin = _margin(answer)
    bases = {arm['name']: arm['base'] for arm in answer['arms']}

    def compare(pairs: Sequence[analysis.Pair]) -> list[Contrast]:
        return analysis.compare(
            known, contrasts=pairs, margin=margin, design=design, data=bases
        )

    with_base = []
    scored = [arm for arm in bases if arm in known]
    for contrast in compare(analysis.pairs_with(bases, scored)):
        seeds = min(len(known[contrast.arm]), len(known[contrast.base]))
        verdict = findings.verdict_with_base(measure, contrast, seeds)
        with_base.append((contrast, verdict))
    if not stored['declared']:
        return _MeasureAnswer(measure, known, with_base, [])
    pairs = [(x['arm'], x['base']) for x in stored['contrasts']]
    declared = [(x, findings.contrast_verdict(measure, x)) for x in compare(pairs)]
    declared_pairs = set(map(frozenset, pairs))
    others = [x for x in with_base if {x[0].arm, x[0].base} not in declared_pairs]
    return _MeasureAnswer(measure, known, declared, others)


def _trials(stored: Sequence[Entries], measure: Measure) -> dict[str, Trials]:
    found = {}
    for x in stored:
        means = tuple(x['means'])
        found[x['arm']] = Trials(means, x['number'], measure.higher_is_better)
    return found


def _arms(stored: Sequence[Entries], known: score_files.Scores) -> list[Entries]:
    found = []
    for arm in stored:
        spread = analysis.spread(list(known.get(arm['name'], {}).values()))
        found.append(arm | {'score': None if spread is None else spread._asdict()})
    return found


def _effects(answer: Entries, known: score_files.Scores) -> list[Entries]:
    if not answer['effects']:
        return []
    levels = {arm['name']: arm['levels'] for arm in answer['arms']}
    found = analysis.effects(known, levels)
    return [x._asdict() | {'factors': list(x.factors)} for x in found]


def _answer_mismatches(stored: Entries, found: Entries) -> Iterator[Mismatch]:
    """Compares the answer with the recomputed one."""
    for name in ('contrasts', 'exploratory'):
        yield from _row_mismatches(_by_pair(stored[name]), _by_pair(found[name]))
    for of_stored, of_found in zip(stored['further'], found['further'], strict=True):
        score = str(Measure(**of_stored['measure']))
        for name in ('contrasts', 'exploratory'):
            rows = _by_pair(of_stored[name])
            yield from _row_mismatches(rows, _by_pair(of_found[name]), f', {score}')
    yield from _row_mismatches(_by_arm(stored), _by_arm(found))
    yield from _row_mismatches(_by_factors(stored), _by_factors(found))


def _by_arm(answer: Entries) -> dict[str, Entries]:
    return {x['name']: x['score'] or {} for x in answer['arms']}


def _by_factors(answer: Entries) -> dict[str, Entries]:
    return {' × '.join(x['factors']): x for x in answer['effects']}


def _by_pair(contrasts: Sequence[Entries]) -> dict[str, Entries]:
    return {f'{x["arm"]} compared with {x["base"]}': x for x in contrasts}


def _row_mismatches(
    stored: Mapping[str, Entries], found: Mapping[str, Entries], of: str = ''
) -> Iterator[Mismatch]:
    for row in stored.keys() - found.keys():
        yield Mismatch(findings.ANSWER, row + of, 'row', 'present', None)
    for row, values in found.items():
        if row not in stored:
            yield Mismatch(findings.ANSWER, row + of, 'row', None, 'present')
            continue
        for column, value in values.items():
            # The test over sentences needs the translations.
            if column == 'over_sentences':
                continue
            there = stored[row].get(column)
            if not _is_equal(there, value):
                yield Mismatch(findings.ANSWER, row + of, column, there, value)


def _is_equal(stored: Any, found: Any) -> bool:
    """Returns whether values agree, numbers to three digits."""
    if isinstance(found, list | tuple):
        found = list(found)
    if console.is_number(stored) and console.is_number(found):
        return math.isclose(stored, found, rel_tol=1e-3, abs_tol=1e-8)
    return stored == found


def _table_mismatches(
    folder: Path,
    name: str,
    answer: Entries,
    part: _MeasureAnswer,
    contrasts: Sequence[tuple[Contrast, str]],
) -> Iterator[Mismatch]:
    """Compares a table of differences, if the report has it, with recomputed ones."""
    file = f'tables/{name}.csv'
    if name != 'answer' and not storage.exists(folder / file):
        return
    rows = score_files.read_rows(folder / file, ('arm', 'verdict'))
    bases = {arm['name']: arm['base'] for arm in answer['arms']}
    found = {x[:2]: findings.entries(x, verdict) for x, verdict in contrasts}
    missing = dict(found)
    for row in rows:
        pair = row['arm'], row.get('base') or bases.get(row['arm'], '')
        missing.pop(pair, None)
        expected = _row(part, row['arm'], found.get(pair))
        if name != 'exploratory':
            expected |= {'looks': answer['looks'], 'margin': answer['margin']}
        for column, value in expected.items():
            there = _parsed(row.get(column, ''), value)
            if column == 'looks' and there is None:
                there = 1
            is_there = column in row or column in ('looks', 'margin')
            if is_there and not _is_equal(there, value):
                yield Mismatch(file, row['arm'], column, there, value)
    for arm, _ in missing:
        yield Mismatch(file, arm, 'row', None, 'present')


def _row(part: _MeasureAnswer, arm: str, contrast: Entries | None) -> Entries:
    """Returns the expected cells of a row of a table."""
    found: Entries = {}
    spread = analysis.spread(list(part.scores.get(arm, {}).values()))
    if spread is not None:
        measure = str(part.measure)
        found = {measure: spread.mean, f'{measure} sd': spread.sd}
    if contrast is None:
        own = dict.fromkeys(_CONTRAST_ENTRIES)
        del own['verdict']  # such as 'base'
        return found | own
    return found | {name: contrast[entry] for name, entry in _CONTRAST_ENTRIES.items()}


def _parsed(text: str, like: Any) -> Any:
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        return text

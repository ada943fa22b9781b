"""Groups runs into arms: runs of one arm differ in nothing but their seeds."""

import dataclasses
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.errors import UserError
from experiments.reports import statistics
from experiments.reports.read import SEEDS, Run
from experiments.reports.statistics import Spread

HIGHER_IS_BETTER = {
    'bleu': True,
    'chrf': True,
    'accuracy': True,
    'loss': False,
    'perplexity': False,
}
_LONGEST_NAME = 60


class Measure(NamedTuple):
    """What decides: a score of a set."""

    set: str
    score: str

    @property
    def higher_is_better(self) -> bool:
        return HIGHER_IS_BETTER[self.score]

    def __str__(self) -> str:
        return f'{self.set} {self.score}'


@dataclasses.dataclass(frozen=True)
class Arm:
    """Runs that differ in their seeds only.

    Attributes:
      name: what tells it from the other arms.
      runs: all that were found, in the order given.
    """

    name: str
    runs: tuple[Run, ...]

    @property
    def scored(self) -> list[Run]:
        """The runs whose scores count: finished, and each with seeds of its own."""
        kept: dict[tuple[Any, ...], Run] = {}
        for run in self.runs:
            if run.finished:
                kept.setdefault(run.seeds, run)
        return list(kept.values())

    def values(self, measure: Measure) -> list[float]:
        """The scores of its finished runs."""
        found = []
        for run in self.scored:
            value = run.evaluations.get(measure.set, {}).get(measure.score)
            if value is not None:
                found.append(value)
        return found

    def spread(self, measure: Measure) -> Spread | None:
        return statistics.spread(self.values(measure))

    def mean(self, entry: str) -> Spread | None:
        """The mean of an entry of its runs' results, such as 'parameters'."""
        values = [run.result.get(entry) for run in self.scored]
        return statistics.spread([value for value in values if value is not None])


class Question(NamedTuple):
    """What a sweep asks. Without one, the runs that are there are compared.

    Attributes:
      text: the question.
      source: who asked it first.
      base: the arm to compare with.
      measure: what decides, such as 'test bleu'.
      cells: arm → seed → the directory of that run.
      fields: in which the arms are meant to differ.
      published: arm → what the source says of it, by name.
      differs: in what the published setting differs from this one.
    """

    text: str
    source: str
    base: str
    measure: str
    cells: Mapping[str, Mapping[int, Path]]
    fields: tuple[str, ...]
    published: Mapping[str, Mapping[str, float]]
    differs: str


@dataclasses.dataclass(frozen=True)
class Study:
    """All that a report is made of.

    Attributes:
      arms: in the order given.
      base: the arm to compare with.
      measure: what decides.
      question: of the sweep, if there is one.
    """

    arms: tuple[Arm, ...]
    base: Arm
    measure: Measure
    question: Question | None = None

    @property
    def fields(self) -> list[str]:
        """The fields in which runs of different arms differ."""
        return differing([run for arm in self.arms for run in arm.runs])

    def ranked(self) -> list[Arm]:
        """The arms, best first; those without a score come last."""
        sign = -1 if self.measure.higher_is_better else 1

        def key(arm: Arm) -> tuple[bool, float]:
            found = arm.spread(self.measure)
            return found is None, 0.0 if found is None else sign * found.mean

        return sorted(self.arms, key=key)


def differing(runs: Sequence[Run]) -> list[str]:
    """The fields, seeds left out, that are not the same in all runs."""
    names = dict.fromkeys(field for run in runs for field in run.config)
    found = []
    for field in names:
        values = {json.dumps(run.config.get(field)) for run in runs}
        if len(values) > 1 and field not in SEEDS:
            found.append(field)
    return found


def group(runs: Sequence[Run]) -> tuple[Arm, ...]:
    """The arms that runs form, in the order of their first runs."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_key(run), []).append(run)
    members = list(groups.values())
    names = _names(members, differing(runs))
    return tuple(map(Arm, names, map(tuple, members)))


def _key(run: Run) -> str:
    """Equal for runs that differ in seeds only."""
    values = {k: v for k, v in run.config.items() if k not in SEEDS and v is not None}
    return json.dumps(values, sort_keys=True)


def _names(groups: Sequence[Sequence[Run]], fields: Sequence[str]) -> list[str]:
    """Each arm's differing fields and their values; or else its directory's name."""
    last_words = Counter(field.rpartition('.')[2] for field in fields)
    names = []
    for runs in groups:
        settings = []
        for field in fields:
            word = field.rpartition('.')[2]
            shown = word if last_words[word] == 1 else field
            value = runs[0].config.get(field)
            settings.append(f'{shown}={"(empty)" if value is None else value}')
        names.append(', '.join(settings))
    are_short = all(0 < len(name) <= _LONGEST_NAME for name in names)
    if are_short and len(set(names)) == len(names):
        return names
    paths = [common_path(runs) for runs in groups]
    short = [Path(path).name or path for path in paths]
    return short if len(set(short)) == len(short) else paths


def common_path(runs: Sequence[Run]) -> str:
    """The directory of a run; of several, what their names have in common.

    `runs/a,train.seed=1` and `runs/a,train.seed=2` have `runs/a` in common.
    """
    paths = [str(run.path) for run in runs]
    common = os.path.commonprefix(paths)
    if common in paths:
        return common
    name = common.rpartition(',')[0]
    return name if os.path.basename(name) else paths[0]


def of_question(question: Question, runs: Sequence[Run]) -> tuple[Arm, ...]:
    """The arms of a sweep, those without runs too; runs are told by their names."""
    by_name = {run.path.resolve().name: run for run in runs}
    arms = []
    for name, cells in question.cells.items():
        there = [by_name.get(path.name) for path in cells.values()]
        arms.append(Arm(name, tuple(run for run in there if run is not None)))
    return tuple(arms)


def study(
    runs: Sequence[Run], question: Question | None, base: str = '', measure: str = ''
) -> Study:
    """What a report of these runs is made of.

    Args:
      runs: at least one.
      question: of a sweep.
      base: the name of an arm, or the directory of one of its runs; empty: the
        question's, or else the first arm.
      measure: a set and a score, 'test bleu'; empty: the question's, or else the BLEU
        of `test`, or of the first set.

    Raises:
      UserError: there is no such arm or measure.
    """
    arms = group(runs) if question is None else of_question(question, runs)
    if question is not None:
        base = base or question.base
        measure = measure or question.measure
    found = _base(arms, base)
    return Study(arms, found, _measure(runs, measure), question)


def _base(arms: Sequence[Arm], name: str) -> Arm:
    if not name:
        return arms[0]
    for arm in arms:
        paths = {str(run.path) for run in arm.runs}
        if name == arm.name or os.path.normpath(name) in paths:
            return arm
    names = '; '.join(arm.name for arm in arms)
    raise UserError(f'--base={name}: there is no such arm; there is {names}')


def _measure(runs: Sequence[Run], text: str) -> Measure:
    sets = list(dict.fromkeys(name for run in runs for name in run.evaluations))
    if not text:
        return Measure('test' if 'test' in sets or not sets else sets[0], 'bleu')
    name, _, score = text.rpartition(' ')
    if score not in HIGHER_IS_BETTER or not name:
        scores = ', '.join(HIGHER_IS_BETTER)
        raise UserError(
            f'--measure={text!r} must be a set and a score, as in '
            f"--measure='test bleu'; the scores are {scores}"
        )
    if sets and name not in sets:
        raise UserError(
            f'--measure={text!r}: no run has a set {name!r}; there is {", ".join(sets)}'
        )
    return Measure(name, score)

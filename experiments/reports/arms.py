"""Groups runs into arms: runs of one arm differ in nothing but their seeds."""

import dataclasses
import json
import math
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.errors import UserError
from experiments.reports import statistics
from experiments.reports.statistics import Spread
from experiments.runs.reading import HIGHER_IS_BETTER, SCORES, SEEDS, Run
from experiments.sweeps.schema import Sweep

_LONGEST_NAME = 60


class Measure(NamedTuple):
    """What decides: a score of a set."""

    set: str
    score: str

    @property
    def higher_is_better(self) -> bool:
        return self.score in HIGHER_IS_BETTER

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
        by_seeds: dict[tuple[Any, ...], Run] = {}
        for run in self.runs:
            if run.finished:
                by_seeds.setdefault(run.seeds, run)
        return list(by_seeds.values())

    def values(self, measure: Measure) -> list[float]:
        """The scores of its finished runs."""
        scores = [run.evaluations.get(measure.set, {}) for run in self.scored]
        values = [score.get(measure.score) for score in scores]
        return [value for value in values if value is not None]

    def spread(self, measure: Measure) -> Spread | None:
        return statistics.spread(self.values(measure))


@dataclasses.dataclass(frozen=True)
class Study:
    """All that a report is made of.

    Attributes:
      arms: in the order given.
      base: the arm to compare with.
      measure: what decides.
      sweep: what was asked; without one, the runs that are there are compared.
    """

    arms: tuple[Arm, ...]
    base: Arm
    measure: Measure
    sweep: Sweep | None = None

    @property
    def fields(self) -> list[str]:
        """The fields in which runs of different arms differ."""
        return differing([run for arm in self.arms for run in arm.runs])

    def ranked(self) -> list[Arm]:
        """The arms, best first; those without a score come last."""
        best = -1 if self.measure.higher_is_better else 1

        def rank(arm: Arm) -> float:
            spread = arm.spread(self.measure)
            return math.inf if spread is None else best * spread.mean

        return sorted(self.arms, key=rank)


def differing(runs: Sequence[Run]) -> list[str]:
    """The fields, seeds left out, that are not the same in all runs."""
    names = dict.fromkeys(field for run in runs for field in run.config)
    differ = []
    for field in names:
        values = {json.dumps(run.config.get(field)) for run in runs}
        if len(values) > 1 and field not in SEEDS:
            differ.append(field)
    return differ


def group(runs: Sequence[Run]) -> tuple[Arm, ...]:
    """The arms that runs form, in the order of their first runs."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        fields = {k: v for k, v in run.config.items() if k not in SEEDS}
        there = {k: v for k, v in fields.items() if v is not None}
        groups.setdefault(json.dumps(there, sort_keys=True), []).append(run)
    members = [tuple(found) for found in groups.values()]
    return tuple(map(Arm, _names(members, differing(runs)), members))


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


def study(
    runs: Sequence[Run], sweep: Sweep | None, base: str = '', measure: str = ''
) -> Study:
    """What a report of these runs is made of.

    Args:
      runs: at least one.
      sweep: whose runs they are, if they are of one.
      base: the name of an arm, or the directory of one of its runs; empty: the
        sweep's, or else the first arm.
      measure: a set and a score, 'test bleu'; empty: the sweep's, or else the BLEU of
        `test`, or of the first set.

    Raises:
      UserError: there is no such arm or measure.
    """
    if sweep is None:
        arms = group(runs)
    else:
        arms = _arms_of_sweep(sweep, runs)
        base = base or sweep.base
        measure = measure or sweep.measure
    return Study(arms, _base(arms, base), _measure(runs, measure), sweep)


def _arms_of_sweep(sweep: Sweep, runs: Sequence[Run]) -> tuple[Arm, ...]:
    """All arms of a sweep, those without runs too; runs are told by their names."""
    arm_by_name = {planned.path.name: planned.arm for planned in sweep.runs}
    members: dict[str, list[Run]] = {arm: [] for arm in sweep.arms}
    for run in runs:
        name = run.path.resolve().name
        if name in arm_by_name:
            members[arm_by_name[name]].append(run)
    return tuple(Arm(name, tuple(there)) for name, there in members.items())


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
    if score not in SCORES or not name or (sets and name not in sets):
        known = ', '.join(sets)
        raise UserError(
            f"--measure={text!r} must be a set and a score, such as 'test bleu'; the "
            f'sets are {known}, the scores {", ".join(SCORES)}'
        )
    return Measure(name, score)

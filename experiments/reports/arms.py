"""The arms of a report."""

import collections
import dataclasses
import itertools
import json
import math
import os
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from experiments import metrics
from experiments.config import user_modules
from experiments.config.schema import short_name
from experiments.errors import UserError
from experiments.evaluation.measure import LOWER_IS_BETTER, Measure
from experiments.metrics.base import MODEL_SCORES, Metric
from experiments.runs import reading
from experiments.runs.reading import SEEDS, Run, TextDifference
from experiments.storage import run_title
from experiments.sweeps import analysis, planning
from experiments.sweeps.analysis import Design, Spread
from experiments.sweeps.schema import Sweep

NO_SWEEP = Sweep('', '', '', '', '', measure=Measure('', ''))
_LONGEST_NAME = 60


class Arm(NamedTuple):
    """Runs that differ in their seeds only, on the same text."""

    name: str
    runs: tuple[Run, ...]

    @property
    def scored(self) -> list[Run]:
        """The runs whose scores count: finished, one for each combination of seeds."""
        by_seeds = {}
        for run in self.runs:
            if run.finished:
                by_seeds.setdefault(run.seeds, run)
        return list(by_seeds.values())

    def by_seeds(self, measure: Measure) -> dict[Any, float]:
        scores = {}
        for run in self.scored:
            score = run_score(run, measure)
            if score is not None:
                scores[run.seeds] = score
        return scores

    def spread(self, measure: Measure) -> Spread | None:
        return analysis.spread(list(self.by_seeds(measure).values()))

    def cost(self, entry: str) -> Spread | None:
        """Returns the mean of `tokens`, `training_flops` or an entry of results."""
        return analysis.spread([run_cost(run, entry) for run in self.scored])


def run_cost(run: Run, entry: str) -> float | None:
    """Returns `tokens`, `training_flops` or an entry of a run's result."""
    # Costs that aren't entries of a result are properties of a run.
    return getattr(run, entry, run.result.get(entry))


def run_score(run: Run, measure: Measure) -> float | None:
    return run.evaluations.get(measure.set, {}).get(measure.score)


class Study(NamedTuple):
    """The input of a report; `measure` is the deciding score.

    Attributes:
      sweep: The sweep of the runs. `NO_SWEEP` compares runs without a declared
        question.
      trust_code: Allows metrics to run the commands that configs of the runs name.
      further: Scores that the report compares too.
    """

    arms: tuple[Arm, ...]
    base: Arm
    measure: Measure
    sweep: Sweep = NO_SWEEP
    trust_code: bool = False
    further: tuple[Measure, ...] = ()

    @property
    def runs(self) -> list[Run]:
        return [run for arm in self.arms for run in arm.runs]

    @property
    def metrics(self) -> list[str]:
        return _metrics_of(self.runs)

    @property
    def decides(self) -> bool:
        """True for the score of the sweep's choices and margin."""
        return self.measure.score == self.sweep.measure.score

    @property
    def margin(self) -> float | None:
        """The smallest difference that matters, if the sweep states it."""
        return (self.sweep.margin or None) if self.decides else None

    def design(self) -> Design:
        """Returns what the intervals include."""
        design = planning.design(self.sweep)
        return design if self.decides else design._replace(trials={})

    @property
    def bases(self) -> dict[str, str]:
        """The arm to compare each arm with: the base on the same data."""
        bases = dict.fromkeys([arm.name for arm in self.arms], self.base.name)
        return bases | self.sweep.bases(self.base.name)

    @property
    def by_data(self) -> 'list[Study]':
        """A study of each data set that the sweep compares, or this one."""
        bases = self.bases
        groups = collections.defaultdict(list)
        for arm in self.arms:
            groups[bases[arm.name]].append(arm)
        return [
            self._replace(arms=tuple(arms), base=_base(arms, base))
            for base, arms in groups.items()
        ]

    def as_look(self) -> 'Study':
        """Returns the study with the seeds that it analyzes, which count its looks."""
        if not self.sweep.arms:
            return self
        analyzed = {
            arm.name: [seeds[0] for seeds in arm.by_seeds(self.measure)]
            for arm in self.arms
        }
        return self._replace(sweep=dataclasses.replace(self.sweep, analyzed=analyzed))

    def ranked(self) -> list[Arm]:
        """Returns the arms of each data set, the best first; unscored ones last."""

        def place(arm):
            spread = arm.spread(self.measure)
            if spread is None:
                return math.inf
            return -self.measure.rank(spread.mean)

        return [arm for part in self.by_data for arm in sorted(part.arms, key=place)]

    def scores(self) -> dict[str, dict[Any, float]]:
        """Returns the scores of ranked arms, by arm and seeds."""
        scores = {arm.name: arm.by_seeds(self.measure) for arm in self.ranked()}
        return {name: by_seeds for name, by_seeds in scores.items() if by_seeds}


def _metrics_of(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(name for run in runs for name in run.metrics))


def lower_is_better(runs: Iterable[Run]) -> set[str]:
    """Returns the names of scores for which lower is better."""
    evaluated = [of_set for run in runs for of_set in run.evaluations.values()]
    of_metrics = [of_set.get('lower_is_better', ()) for of_set in evaluated]
    return {*LOWER_IS_BETTER, *itertools.chain(*of_metrics)}


def find_metric(run: Run, measure: Measure, trust_code: bool = False) -> Metric:
    """Returns the metric of a score; for a loss, the deciding metric."""
    user_modules.check_origin(run.metrics_spec, run.path)
    user_modules.check_commands(run.metrics_spec, run.path, trust_code)
    name = measure.metric(run.metrics)
    # Results of earlier versions lack the target language, which had no effect.
    language = run.evaluations.get(measure.set, {}).get('target', '')
    found = metrics.make(run.metrics_spec, language)
    if name not in found:
        raise UserError(f'{run.path}: no {name} score. Leave this run out.')
    found[name].check_installed()
    return found[name]


def differing_fields(
    runs: Sequence[Run], without: Collection[str] = SEEDS
) -> list[str]:
    names = dict.fromkeys(field for run in runs for field in run.config)
    differ = []
    for field in names:
        values = {json.dumps(run.config.get(field)) for run in runs}
        if len(values) > 1 and field not in without:
            differ.append(field)
    return differ


def text_differences(runs: Sequence[Run]) -> list[TextDifference]:
    """Returns the texts that differ between runs whose configs name the same data."""
    known = []
    for run in runs:
        data = run.config.get('data'), run.config.get('filters')
        known.append((run.path, data, run.texts))
    return reading.text_differences(known)


def different_text(runs: Sequence[Run]) -> list[str]:
    """Returns a warning for each of `text_differences`."""
    return [
        f'{difference}, though their data setting is the same. They are separate arms.'
        for difference in text_differences(runs)
    ]


def group(runs: Sequence[Run]) -> tuple[Arm, ...]:
    """Groups runs into arms, in the order of their first runs."""
    fields = differing_fields(runs)
    groups = collections.defaultdict(list)
    for run in runs:
        values = [run.config.get(field) for field in fields]
        groups[json.dumps(values)].append(run)
    members = list(map(tuple, groups.values()))
    arms = []
    for name, same in zip(_names(members, fields), members, strict=True):
        arms += _by_text(name, same)
    return tuple(arms)


def _by_text(name: str, runs: tuple[Run, ...]) -> list[Arm]:
    """Separates runs that differ in their text only: `heads=4, text 2`."""
    differ = [difference.text for difference in text_differences(runs)]
    groups = collections.defaultdict(list)
    for run in runs:
        groups[tuple(map(run.texts.get, differ))].append(run)
    if len(groups) == 1:
        return [Arm(name, runs)]
    numbered = enumerate(groups.values(), 1)
    return [Arm(f'{name}, text {number}', tuple(part)) for number, part in numbered]


def _names(groups: Sequence[Sequence[Run]], fields: Sequence[str]) -> list[str]:
    """Names each arm by its differing fields, or by its directory if that is too long.

    Leaves out a field's section if that is clear without it: `num_heads=4`.
    """
    words = list(map(short_name, fields))
    names = []
    for first, *_ in groups:
        values = [first.config.get(field) for field in fields]
        names.append(', '.join(map('{}={}'.format, words, values)))
    if all(0 < len(name) <= _LONGEST_NAME for name in names):
        return names
    names = list(map(common_path, groups))
    if len(set(names)) < len(names):
        return [str(first.path) for first, *_ in groups]
    return names


def common_path(runs: Sequence[Run]) -> str:
    """Returns the directory of a run, or the common part of several names.

    It is `runs/a` for `runs/a,train.seed=1` and `runs/a,train.seed=2`.
    """
    paths = [str(run.path) for run in runs]
    common = os.path.commonprefix(paths)
    if common in paths:
        return common
    found = re.match('(.*)(,|/seed=)', common)
    return found[1] if found else paths[0]


def study(
    runs: Sequence[Run],
    sweep: Sweep | None,
    base: str = '',
    measure: Measure | None = None,
) -> Study:
    """Collects the input of a report from at least one run.

    Args:
      base: The name of an arm. Defaults to the sweep's, or else the first arm.
      measure: Defaults to the sweep's, or else the deciding metric on `test` or the
        first set.
    """
    sweep = sweep or NO_SWEEP
    arms = _arms_of_sweep(sweep, runs) if sweep.arms else group(runs)
    if sweep.arms:
        of_sweep = [run for arm in arms for run in arm.runs]
        reading.check_texts(text_differences(of_sweep))
    if not any(arm.runs for arm in arms):
        raise UserError(
            f'--sweep={sweep.name}: none of the runs belongs to this sweep. Pass its '
            'runs, or leave out --sweep.'
        )
    compared_with = _base(arms, base or sweep.base)
    decides = _measure(runs, measure or sweep.measure)
    of_sweep = [_measure(runs, other) for other in sweep.further]
    further = tuple(other for other in of_sweep if other != decides)
    return Study(arms, compared_with, decides, sweep, further=further)


def _arms_of_sweep(sweep: Sweep, runs: Sequence[Run]) -> tuple[Arm, ...]:
    found = {run_title(run.path.resolve()): run for run in runs}
    arms = []
    for name in sweep.arms:
        planned = [run_title(run.path) for run in sweep.runs if run.arm == name]
        there = filter(None, map(found.get, planned))
        arms.append(Arm(name, tuple(there)))
    return tuple(arms)


def _base(arms: Sequence[Arm], name: str) -> Arm:
    if not name:
        return arms[0]
    for arm in arms:
        if arm.name == name:
            return arm
    names = '; '.join(arm.name for arm in arms)
    raise UserError(f'--base={name}: unknown arm. Choose one of {names}.')


def _measure(runs: Sequence[Run], measure: Measure) -> Measure:
    evaluated = [of_set for run in runs for of_set in run.evaluations.items()]
    sets = list(dict(evaluated))
    known_scores = [*_metrics_of(runs), *MODEL_SCORES]
    if measure == NO_SWEEP.measure:
        name = 'test' if 'test' in sets or not sets else sets[0]
        measure = Measure(name, known_scores[0])
    is_known = measure.set and (measure.set in sets or not sets)
    if measure.score not in known_scores or not is_known:
        raise UserError(
            f'--measure={str(measure)!r}: unknown set or score. Pass both, such as '
            f"'test bleu'. Sets: {', '.join(sets)}. Scores: "
            f'{", ".join(known_scores)}.'
        )
    is_higher = measure.score not in lower_is_better(runs)
    return dataclasses.replace(measure, higher_is_better=is_higher)

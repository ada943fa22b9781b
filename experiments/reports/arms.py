"""Groups runs into arms: runs of one arm differ in nothing but their seeds."""

import collections
import json
import math
import os
import re
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from experiments import metrics
from experiments.errors import UserError
from experiments.metrics.base import OF_MODELS, Metric
from experiments.reports import analysis
from experiments.reports.analysis import Spread
from experiments.runs.reading import SEEDS, Run
from experiments.storage import run_title
from experiments.sweeps.schema import Sweep

NO_SWEEP = Sweep('', question='', source='', config='', base='', measure='')
_LONGEST_NAME = 60


class Measure(NamedTuple):
    """What decides: a score of a set."""

    set: str
    score: str
    higher_is_better: bool = True

    def metric(self, run: Run) -> str:
        """What the metric of a run is called; of a loss, the one that decides."""
        return self.score if self.is_of_translations else run.metrics[0]

    @property
    def is_of_translations(self) -> bool:
        """Whether a metric gives it, so that it has two decimals."""
        return self.score not in OF_MODELS

    def rank(self, score: float) -> float:
        """A number that is higher for a better score."""
        return score if self.higher_is_better else -score

    def __str__(self) -> str:
        return f'{self.set} {self.score}'


class Arm(NamedTuple):
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
        by_seeds = {}
        for run in self.runs:
            if run.finished:
                by_seeds.setdefault(run.seeds, run)
        return list(by_seeds.values())

    def by_seeds(self, measure: Measure) -> dict[Any, float]:
        """The scores of its finished runs, by all of a run's seeds."""
        scores = {}
        for run in self.scored:
            of_set = run.evaluations.get(measure.set, {})
            if of_set.get(measure.score) is not None:
                scores[run.seeds] = of_set[measure.score]
        return scores

    def spread(self, measure: Measure) -> Spread | None:
        return analysis.spread(list(self.by_seeds(measure).values()))

    def cost(self, entry: str) -> Spread | None:
        """The mean of a cost of its finished runs; None where it is not known.

        Args:
          entry: of a result, or 'tokens', or 'training_flops'.
        """
        # A run computes those that are no entry of its result.
        costs = [getattr(run, entry, run.result.get(entry)) for run in self.scored]
        return analysis.spread(costs)


class Study(NamedTuple):
    """All that a report is made of.

    Attributes:
      arms: in the order given.
      base: the arm to compare with.
      measure: what decides.
      sweep: what was asked; of `NO_SWEEP` the runs that are there are compared.
    """

    arms: tuple[Arm, ...]
    base: Arm
    measure: Measure
    sweep: Sweep = NO_SWEEP

    @property
    def runs(self) -> list[Run]:
        """Those of all arms, arm by arm."""
        return [run for arm in self.arms for run in arm.runs]

    @property
    def metrics(self) -> list[str]:
        """What the scores of translations are called."""
        return metric_names(self.runs)

    @property
    def bases(self) -> dict[str, str]:
        """Arm → the arm to compare it with: the base, or what that is on its data."""
        of_all = dict.fromkeys([arm.name for arm in self.arms], self.base.name)
        return of_all | self.sweep.bases(self.base.name)

    @property
    def by_data(self) -> 'list[Study]':
        """A study of each data set, if they are a factor of the sweep; or this one.

        Each has the arms of its data, and what the base is there.
        """
        bases = self.bases
        groups = collections.defaultdict(list)
        for arm in self.arms:
            groups[bases[arm.name]].append(arm)
        return [
            self._replace(arms=tuple(arms), base=_base(arms, base))
            for base, arms in groups.items()
        ]

    def ranked(self) -> list[Arm]:
        """The arms, of each data set the best first, and last those without a score."""

        def place(arm):
            spread = arm.spread(self.measure)
            if spread is None:
                return math.inf
            return -self.measure.rank(spread.mean)

        found = []
        for part in self.by_data:
            found += sorted(part.arms, key=place)
        return found

    def scores(self) -> dict[str, dict[Any, float]]:
        """By arm and seeds, of the arms that have any, as they are ranked."""
        scores = {arm.name: arm.by_seeds(self.measure) for arm in self.ranked()}
        return {name: by_seeds for name, by_seeds in scores.items() if by_seeds}


def metric_names(runs: Sequence[Run]) -> list[str]:
    """What the scores of some runs' translations are called."""
    return list(dict.fromkeys(name for run in runs for name in run.metrics))


def metric_of(run: Run, measure: Measure) -> Metric:
    """The metric that a run's set was scored with; of a loss, the one that decides.

    Raises:
      UserError: it was not, or what the metric needs is not installed here.
    """
    name = measure.metric(run)
    # A result that does not tell its target is of a time when it did not count.
    language = run.evaluations.get(measure.set, {}).get('target', '')
    found = metrics.make(run.metrics_spec, language)
    if name not in found:
        raise UserError(f'{run.path} has no score by {name}: leave it out')
    found[name].check_installed()
    return found[name]


def differing(runs: Sequence[Run], without: Collection[str] = SEEDS) -> list[str]:
    """The fields, some left out, that are not the same in all runs."""
    names = dict.fromkeys(field for run in runs for field in run.config)
    differ = []
    for field in names:
        values = {json.dumps(run.config.get(field)) for run in runs}
        if len(values) > 1 and field not in without:
            differ.append(field)
    return differ


def group(runs: Sequence[Run]) -> tuple[Arm, ...]:
    """The arms that runs form, in the order of their first runs.

    A field that a run does not have is as one that is None.
    """
    fields = differing(runs)
    groups = collections.defaultdict(list)
    for run in runs:
        values = [run.config.get(field) for field in fields]
        groups[json.dumps(values)].append(run)
    members = list(map(tuple, groups.values()))
    return tuple(map(Arm, _names(members, fields), members))


def _names(groups: Sequence[Sequence[Run]], fields: Sequence[str]) -> list[str]:
    """Each arm's differing fields and their values; or else its directory.

    `num_heads=4, residual=pre_norm`: of a field its last word, where these differ.
    Names that are too long for a table make way for directories.
    """
    words = [field.rpartition('.')[2] for field in fields]
    if len(set(words)) < len(words):
        words = list(fields)
    names = []
    for first, *_ in groups:
        values = [first.config.get(field) for field in fields]
        parts = map('{}={}'.format, words, values)
        names.append(', '.join(parts))
    if all(0 < len(name) <= _LONGEST_NAME for name in names):
        return names
    return list(map(common_path, groups))


def common_path(runs: Sequence[Run]) -> str:
    """The directory of a run; of several, what their names have in common.

    `runs/a,train.seed=1` and `runs/a,train.seed=2` have `runs/a` in common, and
    `runs/a/b/seed=1` and `runs/a/b/seed=2` have `runs/a/b`.
    """
    paths = [str(run.path) for run in runs]
    common = os.path.commonprefix(paths)
    if common in paths:
        return common
    found = re.match('(.*)(,|/seed=)', common)
    if found is None:
        return paths[0]
    return found[1]


def study(
    runs: Sequence[Run], sweep: Sweep | None, base: str = '', measure: str = ''
) -> Study:
    """What a report of these runs is made of.

    Args:
      runs: at least one.
      sweep: whose runs they are, if they are of one.
      base: the name of an arm; empty: the sweep's, or else the first arm.
      measure: a set and a score, 'test bleu'; empty: the sweep's, or else the metric
        that decides, of `test` or of the first set.

    Raises:
      UserError: there is no such arm or measure, or no run is of the sweep.
    """
    sweep = sweep or NO_SWEEP
    arms = _arms_of_sweep(sweep, runs) if sweep.arms else group(runs)
    if not any(arm.runs for arm in arms):
        raise UserError(
            f'none of the runs is of an arm of --sweep={sweep.name}: give its runs, '
            'or leave --sweep out'
        )
    compared_with = _base(arms, base or sweep.base)
    decides = _measure(runs, measure or sweep.measure)
    return Study(arms, compared_with, decides, sweep)


def _arms_of_sweep(sweep: Sweep, runs: Sequence[Run]) -> tuple[Arm, ...]:
    """All arms of a sweep, those without runs too; runs are told by their titles."""
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
    raise UserError(f'--base={name}: there is no such arm; there is {names}')


def _measure(runs: Sequence[Run], text: str) -> Measure:
    evaluated = [of_set for run in runs for of_set in run.evaluations.items()]
    sets = list(dict(evaluated))
    known_scores = [*metric_names(runs), *OF_MODELS]
    if not text:
        name = 'test' if 'test' in sets or not sets else sets[0]
        text = f'{name} {known_scores[0]}'
    name, _, score = text.rpartition(' ')
    if score not in known_scores or not name or (sets and name not in sets):
        raise UserError(
            f"--measure={text!r} must be a set and a score, such as 'test bleu'; the "
            f'sets are {", ".join(sets)}, the scores {", ".join(known_scores)}'
        )
    lower = {'loss', 'perplexity'}
    for _, scores in evaluated:
        lower.update(scores.get('lower_is_better', ()))
    return Measure(name, score, score not in lower)

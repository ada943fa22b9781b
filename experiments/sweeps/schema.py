"""A sweep's file: its question, its arms and its seeds."""

import dataclasses
import hashlib
import itertools
import math
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from experiments.command_line import flags
from experiments.config.load import flatten
from experiments.config.schema import ExperimentConfig
from experiments.errors import UserError, named, user_errors
from flaxformer_lite import ranges
from flaxformer_lite.config import spec
from flaxformer_lite.ranges import (
    Choices,
    NotNegative,
    Positive,
    Range,
    Size,
    nearest,
    shown,
)

Fields = dict[str, Any]  # of a sweep's file, or of a config: overrides
FOLDER = flags.PROJECT / 'configs' / 'sweeps'
SEED = 'train.seed'
_TUNING_SEED = 100  # which no sweep of few seeds reports


class PlannedRun(NamedTuple):
    """A run of a sweep: the one that `experiments.run` makes with the same overrides.

    And with the same `--workdir`, `runs/<sweep>/<arm>/seed=1`; where something is
    tuned, `runs/<sweep>/<arm>/<value>/seed=1`.

    Attributes:
      arm: its name.
      seed: the run's `train.seed`.
      overrides: what differs from the config file.
      path: the run's directory.
      config: with the overrides in it.
      measure: the set and the score that are looked at.
      value: of what is tuned; None where nothing is.
      crossed: Fields of crossed factors, which may have no effect in an arm.
    """

    arm: str
    seed: int
    overrides: Fields
    path: Path
    config: ExperimentConfig
    measure: str
    value: Any = None
    crossed: frozenset[str] = frozenset()

    @property
    def asked(self) -> Fields:
        """The overrides that must have an effect."""
        return {k: v for k, v in self.overrides.items() if k not in self.crossed}

    @property
    def title(self) -> str:
        """Its arm, with the value of what is tuned."""
        if self.value is None:
            return self.arm
        return f'{self.arm}, {self.value}'

    def __str__(self) -> str:
        return f'{self.title}, seed {self.seed}'


@dataclasses.dataclass(frozen=True)
class Tuning:
    """`tuning(field='model.dropout', values=(0.1, 0.3))`: what each arm tries first.

    The value with the best mean over its trials is the one that the arm is reported
    with, by runs of other seeds. All arms try the same values.

    Attributes:
      field: of the config; or an argument of the part that a field names, as
        'optimizer.schedule.peak' is.
      values: in their order, which the report draws them in.
      budget: how many of them an arm tries; 0 for all. Fewer are drawn at random
        (random search, Bergstra and Bengio 2012).
      seeds: of the trials; the sweep's are others.
      set: whose score decides among them; never the one that is reported.
    """

    field: str
    values: tuple
    budget: Annotated[int, Range(at_least=0)] = 0
    seeds: tuple = (_TUNING_SEED,)
    set: str = 'val'

    @property
    def tried(self) -> list[Any]:
        """The values that each arm tries, in their order."""
        number = len(self.values)
        budget = min(self.budget or number, number)
        random = np.random.default_rng(0)
        drawn = random.choice(number, budget, replace=False)
        return [self.values[i] for i in sorted(drawn)]


@dataclasses.dataclass(frozen=True)
class Until:
    """`until(half_width=1.0, most=12)`: seeds until the intervals are narrow.

    After `first` seeds, and after as many again, the widest interval is looked at.
    Every look has its share of the error rate, so that all intervals together cover in
    95 of 100 sweeps whichever is the last (Bonferroni's way to spend it).

    Attributes:
      half_width: of the widest interval of a declared difference, at the end.
      most: seeds.
      first: seeds of each step.
    """

    half_width: Positive
    most: Size
    first: Annotated[int, Range(at_least=2)] = 3


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What a sweep's file says.

    Attributes:
      name: the file's, without .py.
      question: one sentence.
      source: where the question or the published numbers are from.
      config: the config file that all arms start from.
      base: the arm that the others are compared with.
      measure: the set and the score that decide: 'test bleu'.
      arms: name → overrides of its own, by field: {'train.steps': 600}.
      factors: name → level → its overrides; every combination of levels is an arm.
      levels: arm → factor → its level.
      overrides: of all arms.
      seeds: each arm is run with each.
      until: says when no more of them are needed; None: all are. A file gives it in
        the place of seeds.
      tune: what each arm tries first, if anything.
      equal: what is the same in all arms beside the data: 'steps', as they say, or
        'tokens' or 'flops', of which each gets as much as the base by its steps.
      contrasts: pairs (arm, arm) whose differences are the question; without any, those
        of each arm from the base are.
      margin: a difference below it does not matter; 0 for none.
      target: a score of the dev set; the report says what each arm took to reach it.
      published: arm → what the source gives for it: {'bleu': 25.8}.
      differs: how the runs differ from the published ones, in data and scale.
      digest: of the file, so that what was declared can be told from what came later.
      trials: the runs that are tried, arm by arm.
      runs: those that are reported, as far as results tell which.
      ended: why results bring no more runs; empty while they may.
    """

    name: str
    question: str
    source: str
    config: str
    base: str
    measure: str
    arms: dict = dataclasses.field(default_factory=dict)
    factors: dict = dataclasses.field(default_factory=dict)
    levels: dict = dataclasses.field(default_factory=dict)
    overrides: dict = dataclasses.field(default_factory=dict)
    seeds: tuple = (0,)
    until: Until | None = None
    tune: Tuning | None = None
    equal: Annotated[str, Choices('steps', 'tokens', 'flops')] = 'steps'
    contrasts: tuple = ()
    margin: NotNegative = 0.0
    target: float | None = None
    published: dict = dataclasses.field(default_factory=dict)
    differs: str = ''
    digest: str = ''
    trials: tuple[PlannedRun, ...] = ()
    runs: tuple[PlannedRun, ...] = ()
    ended: str = ''

    @property
    def looks(self) -> int:
        """How often the intervals may decide whether seeds are added."""
        if self.until is None:
            return 1
        return math.ceil(self.until.most / self.until.first)

    @property
    def all_runs(self) -> tuple[PlannedRun, ...]:
        return self.trials + self.runs

    @property
    def fields(self) -> set[str]:
        """In which the arms are meant to differ."""
        found = set(itertools.chain(*self.arms.values()))
        if self.tune is not None:
            part, _, _ = self.tune.field.rpartition('.')
            found |= {self.tune.field, part}
        if self.equal != 'steps':
            found.add('train.steps')
        return found

    @property
    def crossed(self) -> frozenset[str]:
        """The fields of factors that are combined with each other."""
        if len(self.factors) < 2:
            return frozenset()
        levels = itertools.chain(*(x.values() for x in self.factors.values()))
        return frozenset(itertools.chain(*levels))

    @property
    def factor_of_data(self) -> str | None:
        """Which of the factors is one of data sets."""
        for factor, levels in self.factors.items():
            if all('data' in overrides for overrides in levels.values()):
                return factor
        return None

    def bases(self, base: str) -> dict[str, str]:
        """Arm → the arm to compare it with: what a base is on the arm's own data.

        Scores on other data are no better or worse. Where data are no factor, it is the
        base itself.
        """
        data = self.factor_of_data
        if data is None:
            return dict.fromkeys(self.arms, base)
        others = self.without_factor(data)
        by_data = {
            levels[data]: arm
            for arm, levels in self.levels.items()
            if others[arm] == others[base]
        }
        return {arm: by_data[levels[data]] for arm, levels in self.levels.items()}

    def without_factor(self, factor: str) -> dict[str, str]:
        """Arm → its name without its level of a factor."""
        names = {}
        for arm, levels in self.levels.items():
            others = [levels[name] for name in levels if name != factor]
            names[arm] = ', '.join(others)
        return names


NOT_OF_THE_FILE = ('name', 'levels', 'until', 'digest', 'trials', 'runs', 'ended')


def load(path: str | Path) -> Sweep:
    """The sweep of a file; it is looked for here, in the project and in its sweeps.

    Raises:
      UserError: there is no such file, it fails, or what it says cannot be a sweep.
    """
    file = flags.find(str(path), (flags.PROJECT, FOLDER))
    values = flags.evaluate(file)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    try:
        if not isinstance(values, dict):
            raise UserError('give it a function get_config() that returns a dictionary')
        sweep = _sweep(file.stem, digest, values)
        _check_arms(sweep)
        _check_tuning(sweep)
    except (UserError, ValueError) as error:
        raise UserError(f'{file}: {error}') from None
    return sweep


def _sweep(name: str, digest: str, values: Fields) -> Sweep:
    """Raises UserError or ValueError for fields or types that a sweep has not."""
    values = _with_tuples(values)
    if isinstance(values.get('tune'), dict):
        tuning = _with_tuples(values['tune'])
        with user_errors('tune: '):
            spec.check('tuning', Tuning, tuning)
        values['tune'] = Tuning(**tuning)
    until = None
    if isinstance(values.get('seeds'), str):
        until = _until(values['seeds'])
        values['seeds'] = tuple(range(until.most))
    spec.check('sweep', Sweep, values, NOT_OF_THE_FILE)
    values |= {'name': name, 'digest': digest, 'until': until}
    if values.get('factors'):
        values |= _factors(values)
    for field in ('arms', 'published'):
        values[field] = _flat(field, values.get(field, {}))
    with named('overrides'):
        values['overrides'] = flatten(values.get('overrides', {}))
    return Sweep(**values)


def _until(seeds: str) -> Until:
    """When no more seeds are needed, as a file says it."""
    with user_errors('seeds: '):
        name, arguments = spec.parse(seeds)
        if name != 'until':
            raise ValueError(f'{shown(name)} is not until(…)')
        spec.check(name, Until, arguments)
        return Until(**arguments)


def _with_tuples(values: Fields) -> Fields:
    """A copy in which what may be a list or a range is a tuple."""
    values = dict(values)
    for name, value in values.items():
        if isinstance(value, list | range):
            values[name] = tuple(value)
    return values


def _factors(values: Fields) -> Fields:
    """Factors, their levels, and the arms that these make.

    `{'model.residual': ['pre_norm', 'rezero']}` is short for levels of these names.
    """
    if values.get('arms'):
        raise UserError('give factors or arms, not both')
    factors = {}
    for name, levels in values['factors'].items():
        _check_name('factors', name)
        if isinstance(levels, list | tuple):
            levels = {str(value): {name: value} for value in levels}
        ranges.check(f'factors[{name!r}]', dict, levels)
        if len(levels) < 2:
            raise UserError(f'factors[{name!r}] needs two levels, not {shown(levels)}')
        factors[name] = _flat(f'factors[{name!r}]', levels)
    of_arms = {}
    arms = {}
    for combination in itertools.product(*factors.values()):
        arm = ', '.join(combination)
        of_arms[arm] = dict(zip(factors, combination, strict=True))
        arms[arm] = {}
        for name, level in of_arms[arm].items():
            arms[arm] |= factors[name][level]
    return {'factors': factors, 'levels': of_arms, 'arms': arms}


def _flat(field: str, by_name: Fields) -> Fields:
    """By name dictionaries by dotted field, of some that may be nested."""
    found = {}
    for name, overrides in by_name.items():
        _check_name(field, name)
        ranges.check(f'{field}[{name!r}]', dict, overrides)
        with named(f'{field}[{name!r}]'):
            found[name] = flatten(overrides)
    return found


def _check_name(field: str, name: Any) -> None:
    """Raises UserError if an arm, a factor or a level has a name that isn't text."""
    if not isinstance(name, str):
        raise UserError(
            f'{field}: the name {shown(name)} must be text, not '
            f'{type(name).__name__}. Write it in quotes.'
        )


def _check_arms(sweep: Sweep) -> None:
    """Refuses what names no arm, and overrides of fields that the sweep sets."""
    for name in ('arms', 'seeds'):
        if not getattr(sweep, name):
            raise UserError(f'{name} is missing: give it')
    for pair in sweep.contrasts:
        is_pair = isinstance(pair, list | tuple) and len(pair) == 2
        is_pair = is_pair and all(isinstance(arm, str) for arm in pair)
        if not is_pair or pair[0] == pair[1]:
            raise UserError(f'contrasts: {shown(pair)} is not a pair of two arms')
    compared = itertools.chain(*sweep.contrasts)
    for arm in (sweep.base, *sweep.published, *compared):
        if arm not in sweep.arms:
            similar = nearest(str(arm), sweep.arms)
            known = ', '.join(sweep.arms)
            raise UserError(f'there is no arm {arm!r}{similar}; there is {known}')
    for arm, overrides in sweep.arms.items():
        if SEED in sweep.overrides | overrides:
            raise UserError(f'arms[{arm!r}]: the sweep sets {SEED}: give it in seeds')
        if sweep.equal != 'steps' and 'train.steps' in overrides:
            raise UserError(
                f'arms[{arm!r}]: equal={sweep.equal!r} sets train.steps: leave it out'
            )


def _check_tuning(sweep: Sweep) -> None:
    """Refuses values that are none to choose among, and what is reported itself."""
    tune = sweep.tune
    if tune is None:
        return
    number = len(tune.values)
    are_different = len(set(map(str, tune.values))) == number
    if number < 2 or None in tune.values or not are_different:
        raise UserError(f'tune: values={shown(tune.values)}: give two or more others')
    if not tune.seeds or any(seed in sweep.seeds for seed in tune.seeds):
        raise UserError(
            f'tune: seeds={shown(tune.seeds)}: give seeds that are not among those of '
            'the sweep, which are reported'
        )
    if sweep.measure.partition(' ')[0] == tune.set:
        raise UserError(
            f'tune: set={shown(tune.set)} is the one that is reported, by measure='
            f'{shown(sweep.measure)}: give another, such as val'
        )

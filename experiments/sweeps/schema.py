"""A sweep's file: its question, its arms and its seeds."""

import dataclasses
import hashlib
import itertools
import math
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from experiments.command_line import flags
from experiments.config.load import flatten
from experiments.config.schema import ExperimentConfig
from experiments.errors import UserError, user_errors
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

FOLDER = flags.PROJECT / 'configs' / 'sweeps'
SEED = 'train.seed'
_TUNING_SEED = 100  # which no sweep of few seeds reports


class PlannedRun(NamedTuple):
    """A run of a sweep: the one that `experiments.run` makes with the same overrides.

    Attributes:
      arm: its name.
      seed: the run's `train.seed`.
      overrides: what differs from the config file, as a run's directory names it.
      path: the run's directory.
      config: with the overrides in it.
      measure: the set and the score that are looked at.
      value: of what is tuned; None where nothing is.
    """

    arm: str
    seed: int
    overrides: dict[str, Any]
    path: Path
    config: ExperimentConfig
    measure: str
    value: Any = None

    @property
    def title(self) -> str:
        """Its arm, with the value of what is tuned."""
        return self.arm if self.value is None else f'{self.arm}, {self.value}'

    def __str__(self) -> str:
        return f'{self.title}, seed {self.seed}'


@dataclasses.dataclass(frozen=True)
class Tuning:
    """`dict(field='model.dropout', values=[0.1, 0.3])`: what each arm tries first.

    The value with the best mean over its trials is the one that the arm is reported
    with, by runs of other seeds. All arms try equally many.

    Attributes:
      field: of the config; or an argument of the part that a field names, as
        'optimizer.schedule.peak' is.
      values: in their order, which the report draws them in.
      budget: how many of them an arm tries; 0 for all. Fewer are drawn at random, the
        same for all arms (random search, Bergstra and Bengio 2012).
      seeds: of the trials; the sweep's are others.
      set: whose score decides among them; never the one that is reported.
    """

    field: str
    values: tuple
    budget: Annotated[int, Range(at_least=0)] = 0
    seeds: tuple = (_TUNING_SEED,)
    set: str = 'val'


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

    @property
    def looks(self) -> int:
        return math.ceil(self.most / self.first)


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What a sweep's file says.

    Attributes:
      name: the file's, without .py.
      digest: of the file, so that what was declared can be told from what came later.
      question: one sentence.
      source: where the question or the published numbers are from.
      config: the config file that all arms start from.
      arms: name → overrides of its own, by field: {'train.steps': 600}.
      base: the arm that the others are compared with.
      measure: the set and the score that decide: 'test bleu'.
      overrides: of all arms.
      seeds: each arm is run with each.
      until: says when no more of them are needed; None: all are.
      factors: name → level → its overrides; every combination of levels is an arm.
      tune: what each arm tries first, if anything.
      equal: what is the same in all arms beside the data: 'steps', as they say, or
        'tokens' or 'flops', of which each gets as much as the base by its steps.
      contrasts: pairs (arm, arm) whose differences are the question; without any, those
        of each arm from the base are.
      margin: a difference below it does not matter; 0 for none.
      target: a score of the dev set; the report says what each arm took to reach it.
      published: arm → what the source gives for it: {'bleu': 25.8}.
      differs: how the runs differ from the published ones, in data and scale.
      trials: the runs that are tried, arm by arm.
      runs: those that are reported, as far as results tell which.
      ended: why there will be no more of them; empty where results may bring some.
    """

    name: str
    question: str
    source: str
    config: str
    arms: dict[str, dict[str, Any]]
    base: str
    measure: str
    overrides: dict[str, Any] = dataclasses.field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)
    until: Until | None = None
    factors: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    tune: Tuning | None = None
    equal: Annotated[str, Choices('steps', 'tokens', 'flops')] = 'steps'
    contrasts: tuple[tuple[str, str], ...] = ()
    margin: float = 0.0
    target: float | None = None
    published: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    differs: str = ''
    digest: str = ''
    trials: tuple[PlannedRun, ...] = ()
    runs: tuple[PlannedRun, ...] = ()
    ended: str = ''

    @property
    def fields(self) -> set[str]:
        """In which the arms are meant to differ."""
        found = {field for overrides in self.arms.values() for field in overrides}
        if self.tune is not None:
            found |= {self.tune.field, self.tune.field.rpartition('.')[0]}
        return found if self.equal == 'steps' else found | {'train.steps'}

    @property
    def levels(self) -> dict[str, tuple[str, ...]]:
        """Arm → its level of each factor."""
        combinations = itertools.product(*self.factors.values())
        return dict(zip(self.arms, combinations, strict=True)) if self.factors else {}


# What a file may say, and what it must.
FIELDS = {
    field.name: field
    for field in dataclasses.fields(Sweep)
    if field.name not in ('name', 'until', 'digest', 'trials', 'runs', 'ended')
}
_REQUIRED = ('question', 'source', 'config', 'arms', 'base', 'measure', 'seeds')


def load(path: str | Path) -> Sweep:
    """The sweep of a file; it is looked for here, in the project and in its sweeps.

    Raises:
      UserError: there is no such file, it fails, or what it says cannot be a sweep.
    """
    file = flags.find(str(path), (flags.PROJECT, FOLDER))
    values = flags.evaluate(file)
    try:
        if not isinstance(values, dict):
            raise UserError('give it a function get_config() that returns a dictionary')
        sweep = _sweep(file.stem, values)
    except (UserError, ValueError) as error:
        raise UserError(f'{file}: {error}') from None
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return dataclasses.replace(sweep, digest=digest)


def _sweep(name: str, values: dict[str, Any]) -> Sweep:
    """Raises UserError or ValueError for what cannot be a sweep."""
    _check_names(values)
    values = {'seeds': (0,)} | values
    if isinstance(values['seeds'], str):
        values['until'] = _part('seeds', Until, *spec.parse(values['seeds']))
        values['seeds'] = range(values['until'].most)
    for field in ('seeds', 'contrasts'):
        if isinstance(values.get(field), list | range):
            values[field] = tuple(values[field])
    if isinstance(values.get('factors'), dict):
        values |= _factors(values['factors'], values.get('arms'))
    if isinstance(values.get('tune'), dict):
        values['tune'] = _tuning(values['tune'], values['seeds'])
        _check_set(values['tune'], str(values.get('measure')))
    _check_types(values)
    arms = {
        arm: _flat_overrides(f'arms[{arm!r}]', overrides)
        for arm, overrides in values['arms'].items()
    }
    common = _flat_overrides('overrides', values.get('overrides', {}))
    sweep = Sweep(**values | {'name': name, 'arms': arms, 'overrides': common})
    _check_arms(sweep)
    for arm, numbers in sweep.published.items():
        ranges.check(f'published[{arm!r}]', dict, numbers)
    ranges.check('margin', NotNegative, sweep.margin)
    return sweep


def _part(field: str, cls: type, name: str, arguments: dict[str, Any]) -> Any:
    """An object of a field, of the arguments that the file gives."""
    wanted = cls.__name__.lower()
    with user_errors(f'{field}: '):
        if name != wanted:
            raise ValueError(f'{shown(name)} is not {wanted}(…)')
        spec.check(name, cls, arguments)
        return cls(**arguments)


def _tuning(values: dict[str, Any], seeds: Any) -> Tuning:
    lists = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    tuning = _part('tune', Tuning, 'tuning', lists)
    several = len(set(map(str, tuning.values))) >= max(2, len(tuning.values))
    if not several or None in tuning.values:
        raise UserError(f'tune: values={shown(tuning.values)}: give two or more others')
    if not tuning.seeds or set(tuning.seeds) & set(seeds):
        raise UserError(
            f'tune: seeds={shown(tuning.seeds)}: give seeds that are not among those '
            'of the sweep, which are reported'
        )
    return tuning


def _check_set(tuning: Tuning, measure: str) -> None:
    if measure.partition(' ')[0] == tuning.set:
        raise UserError(
            f'tune: set={shown(tuning.set)} is the one that is reported, by measure='
            f'{shown(measure)}: give another, such as val'
        )


def _factors(factors: dict[str, Any], arms: Any) -> dict[str, Any]:
    """Factors as the sweep has them, and the arms that their levels make.

    `{'model.residual': ['pre_norm', 'rezero']}` is short for levels of these names.
    """
    if arms:
        raise UserError('give factors or arms, not both')
    levels = {}
    for name, given in factors.items():
        if isinstance(given, list | tuple):
            given = {str(value): {name: value} for value in given}
        ranges.check(f'factors[{name!r}]', dict, given)
        if len(given) < 2:
            raise UserError(f'factors[{name!r}] needs two levels, not {shown(given)}')
        levels[name] = {
            level: _flat_overrides(f'factors[{name!r}][{level!r}]', overrides)
            for level, overrides in given.items()
        }
    made = {
        ', '.join(names): dict(itertools.chain(*(x.items() for x in overrides)))
        for names, overrides in zip(
            itertools.product(*levels.values()),
            itertools.product(*(x.values() for x in levels.values())),
            strict=True,
        )
    }
    return {'factors': levels, 'arms': made}


def _check_names(values: Mapping[str, Any]) -> None:
    for name in values:
        if name not in FIELDS:
            raise UserError(
                f'a sweep has no field {shown(name)}{nearest(str(name), FIELDS)}; it '
                f'has {", ".join(FIELDS)}'
            )


def _check_types(values: Mapping[str, Any]) -> None:
    """Refuses values of other types, and what is missing."""
    for name, field in FIELDS.items():
        if name in values:
            origin = typing.get_origin(field.type)
            kind = origin if origin in (dict, tuple) else field.type
            ranges.check(name, kind, values[name])
    for name in _REQUIRED:
        if not values.get(name):
            raise UserError(f'{name} is missing: give it')


def _flat_overrides(name: str, values: Any) -> dict[str, Any]:
    """Overrides by dotted field, of a dictionary that may be nested."""
    ranges.check(name, dict, values)
    overrides = flatten(values)
    if SEED in overrides:
        raise UserError(f'{name}: {SEED}={overrides[SEED]}: give it in seeds')
    return overrides


def _check_arms(sweep: Sweep) -> None:
    for pair in sweep.contrasts:
        if len(pair) != 2 or pair[0] == pair[1]:
            raise UserError(f'contrasts: {shown(pair)} is not a pair of two arms')
    contrasted = [arm for pair in sweep.contrasts for arm in pair]
    for arm in (sweep.base, *sweep.published, *contrasted):
        if arm not in sweep.arms:
            raise UserError(
                f'there is no arm {arm!r}{nearest(str(arm), sweep.arms)}; there is '
                f'{", ".join(sweep.arms)}'
            )
    if sweep.equal != 'steps':
        for arm, overrides in sweep.arms.items():
            if 'train.steps' in overrides:
                raise UserError(
                    f'arms[{arm!r}]: equal={sweep.equal!r} sets train.steps: leave it '
                    'out'
                )

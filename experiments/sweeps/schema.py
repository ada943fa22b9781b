"""Sweep files: a question, its arms and its seeds."""

import collections
import dataclasses
import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from experiments.command_line import console, flags
from experiments.config.load import flatten, plain
from experiments.config.schema import ExperimentConfig
from experiments.errors import UserError, prefix_errors, user_errors
from experiments.evaluation.measure import Measure
from experiments.runs import directory
from flaxformer_lite import validation
from flaxformer_lite.config.spec import Component
from flaxformer_lite.validation import (
    Choices,
    NotNegative,
    Positive,
    Range,
    Size,
    did_you_mean,
    quote,
)

Seeds = Mapping[str, Sequence[int]]  # by arm
Fields = dict[str, Any]  # of a sweep's file, or of a config: overrides
FOLDER = flags.PROJECT / 'configs' / 'sweeps'
SEED = 'train.seed'
_TUNING_SEED = 100  # large, so that trials don't share seeds with reported runs


class PlannedRun(NamedTuple):
    """A run of a sweep, the same as `experiments.run` makes with its overrides.

    Attributes:
      path: `runs/<sweep>/<arm>/seed=1`, or, with tuning,
        `runs/<sweep>/<arm>/<value>/seed=1`.
      further: Scores that are also reported.
      crossed: Fields of crossed factors, which may have no effect in an arm.
    """

    arm: str
    seed: int
    overrides: Fields
    path: Path
    config: ExperimentConfig
    measure: Measure
    value: Any = None
    crossed: frozenset[str] = frozenset()
    further: tuple[Measure, ...] = ()

    @property
    def overridden_fields(self) -> Fields:
        """The overrides that must have an effect."""
        return {k: v for k, v in self.overrides.items() if k not in self.crossed}

    @property
    def title(self) -> str:
        if self.value is None:
            return self.arm
        return f'{self.arm}, {self.value}'

    def __str__(self) -> str:
        return f'{self.title}, seed {self.seed}'


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Trials of each arm, with seeds that aren't reported.

    An arm is reported with the value that has the best mean over its trials.

    Attributes:
      values: In the order in which the report draws them.
      budget: Number of values that every arm tries; 0 for all. Fewer are drawn at
        random (random search, Bergstra and Bengio 2012).
      seeds: Must differ from the sweep's.
      set: The set whose score chooses the value; never the reported set.
    """

    field: str
    values: tuple
    budget: Annotated[int, Range(at_least=0)] = 0
    seeds: tuple = (_TUNING_SEED,)
    set: str = 'val'

    @property
    def tried(self) -> list[Any]:
        number = len(self.values)
        budget = min(self.budget or number, number)
        random = np.random.default_rng(0)
        drawn = random.choice(number, budget, replace=False)
        return [self.values[i] for i in sorted(drawn)]


@dataclasses.dataclass(frozen=True)
class StoppingRule:
    """`until(half_width=1.0, most=12)`: adds seeds until the intervals are narrow.

    Each look, after every `first` seeds, gets an equal share of the error rate
    (Bonferroni), so all intervals cover together, no matter which look is the last.

    Attributes:
      half_width: Target for the widest interval of the declared differences.
      most: Maximum number of seeds.
      first: Number of seeds added at a time.
    """

    half_width: Positive
    most: Size
    first: Annotated[int, Range(at_least=2)] = 3


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The contents of a sweep file.

    Attributes:
      source: Origin of the question or the published numbers.
      base: The arm that the others are compared with.
      measure: The deciding score; a sweep file gives it as 'test bleu'.
      further: Scores that the report compares too. A sweep file gives them after the
        deciding one: ['test loss', 'test bleu'].
      arms: Overrides of each arm by field, or by a component's argument:
        'optimizer.schedule.peak'.
      factors: Overrides of each level by factor. Every combination of levels is an arm.
      levels: Level of each factor by arm. With `arms`, a sweep file may give it, so
        that a setting can depend on several levels.
      base_seeds: Seeds of the base, and of each arm that several contrasts compare
        with. They include `seeds`, their default. With k arms that share a base, √k
        times the seeds make the intervals of all contrasts narrowest (Dunnett 1955).
      until: When to stop adding seeds; None runs all. A sweep file gives it as `seeds`.
      equal: The arms' common budget. 'steps' keeps the steps of each arm. 'tokens' and
        'flops' set them so that each arm gets the base's total.
      contrasts: Pairs (arm, arm) whose differences answer the question. Defaults to
        each arm against the base.
      margin: Smallest difference that matters; 0 for none. In a sweep file also a share
        of the remaining error of the base, such as '5%'.
      margin_share: The margin as a share of the remaining error; 0 for none. The
        remaining error is the distance of the base's mean from the best score: 100 −
        BLEU, or the loss itself.
      forecast: The cell that the fit of the trend excludes and forecasts, by its levels
        of numeric factors: {'width': '128', 'steps': '5400'}. Needs `contrasts` on a
        loss.
      target: A dev set score. The report shows the steps, tokens and seconds that
        each arm needed to reach it.
      published: The scores that the source reports, by arm: {'bleu': 25.8}.
      differs: How the runs differ from the published ones.
      departures: Differences of an arm from the form that its paper describes, by arm.
      digest: SHA-256 of the file.
      reports: The seeds that each earlier report analyzed.
      analyzed: The seeds that the current report analyzes; if empty, all planned ones.
      trials: The tuning runs, arm by arm.
      runs: The reported runs that results determine so far.
      ended: The reason why no more runs follow from results; empty while some may.
    """

    name: str
    question: str
    source: str
    config: str
    base: str
    measure: Measure
    further: tuple[Measure, ...] = ()
    arms: dict = dataclasses.field(default_factory=dict)
    factors: dict = dataclasses.field(default_factory=dict)
    levels: dict = dataclasses.field(default_factory=dict)
    overrides: dict = dataclasses.field(default_factory=dict)
    seeds: tuple = (0,)
    base_seeds: tuple = ()
    until: StoppingRule | None = None
    tune: Tuning | None = None
    equal: Annotated[str, Choices('steps', 'tokens', 'flops')] = 'steps'
    contrasts: tuple = ()
    margin: NotNegative = 0.0
    margin_share: float = 0.0
    forecast: dict = dataclasses.field(default_factory=dict)
    target: float | None = None
    published: dict = dataclasses.field(default_factory=dict)
    differs: str = ''
    departures: dict = dataclasses.field(default_factory=dict)
    digest: str = ''
    reports: tuple[Seeds, ...] = ()
    analyzed: Seeds = dataclasses.field(default_factory=dict)
    trials: tuple[PlannedRun, ...] = ()
    runs: tuple[PlannedRun, ...] = ()
    ended: str = ''

    @property
    def looks(self) -> int:
        """Maximum number of looks at the data that may decide to add seeds."""
        planned = 1
        if self.until is not None:
            planned = math.ceil(self.until.most / self.until.first)
        return max(planned, 1 + self.earlier_looks)

    @property
    def earlier_looks(self) -> int:
        """Number of reports that analyzed fewer seeds of an arm.

        An arm that a report lacked does not count.
        """
        seeds = self.analyzed or {arm: self.seeds_of(arm) for arm in self.arms}
        return sum(
            any(not set(seeds.get(arm, ())) <= set(report[arm]) for arm in report)
            for report in self.reports
        )

    @property
    def logs(self) -> Path:
        """The folder of the workers' output and of the record of reports."""
        return directory.RUNS / '.sweeps' / self.name

    @property
    def margin_text(self) -> str:
        """The declared margin; '' for none."""
        if self.margin_share:
            return f'{100 * self.margin_share:.3g}% of the remaining error'
        return console.cell(self.margin) if self.margin else ''

    def seeds_of(self, arm: str) -> tuple:
        """Returns the seeds with which an arm is reported."""
        if not self.base_seeds:
            return self.seeds
        counts = collections.Counter(base for _, base in self.contrasts)
        is_base = arm in self.bases(self.base).values() or counts[arm] > 1
        return self.base_seeds if is_base else self.seeds

    @property
    def all_runs(self) -> tuple[PlannedRun, ...]:
        return self.trials + self.runs

    @property
    def fields(self) -> set[str]:
        """The fields in which the arms are meant to differ."""
        names = set(itertools.chain(*self.arms.values()))
        if self.tune is not None:
            names.add(self.tune.field)
        # An argument of a component, as in optimizer.schedule.peak, sets its field.
        found = names | {name.rpartition('.')[0] for name in names}
        if self.equal != 'steps':
            found.add('train.steps')
        return found

    @property
    def crossed(self) -> frozenset[str]:
        if len(self.factors) < 2:
            return frozenset()
        levels = itertools.chain(*(x.values() for x in self.factors.values()))
        return frozenset(itertools.chain(*levels))

    @property
    def factor_of_data(self) -> str | None:
        for factor, levels in self.factors.items():
            if all('data' in overrides for overrides in levels.values()):
                return factor
        return None

    def bases(self, base: str) -> dict[str, str]:
        """Returns the base of each arm, on the same data."""
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
        """Returns the name of each arm without its level of a factor."""
        names = {}
        for arm, levels in self.levels.items():
            others = [levels[name] for name in levels if name != factor]
            names[arm] = ', '.join(others)
        return names


PLANNED_FIELDS = (
    *('name', 'further', 'until', 'margin_share', 'digest'),
    *('reports', 'analyzed', 'trials', 'runs', 'ended'),
)


def load(path: str | Path) -> Sweep:
    """Loads a sweep file."""
    file = flags.find(str(path), (flags.PROJECT, FOLDER))
    is_stored = file.suffix == '.json'  # data of a run, which is never executed
    values = None if is_stored else flags.evaluate(file)
    if is_stored or isinstance(values, ConfigDict):
        raise UserError(
            f'{file}: config of a run, not a sweep file. Train it with python -m '
            f'experiments.run --config={path}.'
        )
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    try:
        if not isinstance(values, dict):
            raise UserError('no get_config() that returns a dictionary. Define it.')
        sweep = _sweep(file.stem, digest, values)
        _check_arms(sweep)
        _check_tuning(sweep)
    except (UserError, ValueError) as error:
        raise UserError(f'{file}: {error}') from None
    return sweep


def _sweep(name: str, digest: str, values: Fields) -> Sweep:
    values = _with_tuples(values)
    if isinstance(values.get('tune'), dict):
        with user_errors('tune: '):
            tuning = _with_tuples(values['tune'])
            values['tune'] = Component('', 'tuning', tuning, given=Tuning).make()
    further = ()
    if 'measure' in values:
        values['measure'], *further = _measures(values['measure'])
    until = None
    if isinstance(values.get('seeds'), str):
        until = _parse_until(values['seeds'])
        values['seeds'] = tuple(range(until.most))
    share = 0.0
    if isinstance(values.get('margin'), str):
        share = _share(values.pop('margin'))
    Component('', 'sweep', values, given=Sweep).check(PLANNED_FIELDS)
    values |= {'margin_share': share, 'name': name, 'digest': digest, 'until': until}
    values['further'] = tuple(further)
    if values.get('factors'):
        values |= _factors(values)
    for field in ('arms', 'published'):
        values[field] = _flat(field, values.get(field, {}))
    with prefix_errors('overrides'):
        values['overrides'] = flatten(values.get('overrides', {}))
    return Sweep(**values)


def _share(margin: str) -> float:
    number = margin.removesuffix('%')
    if number == margin or not _is_positive(number) or float(number) >= 100:
        raise UserError(
            f"margin: {quote(margin)} is neither a number nor a share. Write '5%' for "
            'a share of the remaining error.'
        )
    return float(number) / 100


def _measures(stated: Any) -> list[Measure]:
    texts = stated if isinstance(stated, tuple) else (stated,)
    for text in texts:
        validation.check('measure', str, text)
    if not texts or len(set(texts)) < len(texts):
        raise UserError(
            f"measure: {quote(texts)} must be different scores, such as ['test loss', "
            "'test bleu']."
        )
    return list(map(Measure.parse, texts))


def _parse_until(seeds: str) -> StoppingRule:
    with user_errors('seeds: '):
        named = Component.of(seeds)
        if named.name != 'until':
            raise ValueError(f'must be a list or until(…), not {quote(seeds)}.')
        return dataclasses.replace(named, given=StoppingRule).make()


def _with_tuples(values: Fields) -> Fields:
    values = dict(values)
    for name, value in values.items():
        if isinstance(value, list | tuple | range):
            values[name] = tuple(map(plain, value))
    return values


def _factors(values: Fields) -> Fields:
    """Returns factors, their levels and the resulting arms.

    `{'model.residual': ['pre_norm', 'rezero']}` is short for levels with those names.
    """
    for name in ('arms', 'levels'):
        if values.get(name):
            raise UserError(f'factors: conflicts with {name}. Give one of them.')
    factors = {}
    for name, levels in values['factors'].items():
        _check_name('factors', name)
        if isinstance(levels, list | tuple):
            with user_errors(f'factors[{name!r}]: '):
                levels = {str(plain(value)): {name: value} for value in levels}
        validation.check(f'factors[{name!r}]', dict, levels)
        if len(levels) < 2:
            raise UserError(
                f'factors[{name!r}]: fewer than two levels, {quote(levels)}. Add one.'
            )
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
    found = {}
    for name, overrides in by_name.items():
        _check_name(field, name)
        validation.check(f'{field}[{name!r}]', dict, overrides)
        with prefix_errors(f'{field}[{name!r}]'):
            found[name] = flatten(overrides)
    return found


def _check_name(field: str, name: Any) -> None:
    if not isinstance(name, str):
        raise UserError(
            f'{field}: the name {quote(name)} must be text, not '
            f'{type(name).__name__}. Write it in quotes.'
        )


def _check_arms(sweep: Sweep) -> None:
    for name in ('arms', 'seeds'):
        if not getattr(sweep, name):
            raise UserError(f'{name}: missing. Set it.')
    for pair in sweep.contrasts:
        is_pair = isinstance(pair, list | tuple) and len(pair) == 2
        is_pair = is_pair and all(isinstance(arm, str) for arm in pair)
        if not is_pair or pair[0] == pair[1]:
            raise UserError(
                f'contrasts: {quote(pair)} is not a pair of different arms.'
            )
    compared = itertools.chain(*sweep.contrasts)
    for arm in (sweep.base, *sweep.published, *sweep.departures, *compared):
        if arm not in sweep.arms:
            similar = did_you_mean(str(arm), sweep.arms)
            known = ', '.join(sweep.arms)
            raise UserError(f'unknown arm {arm!r}{similar}. Choose one of {known}.')
    for arm, text in sweep.departures.items():
        validation.check(f'departures[{arm!r}]', str, text)
    _check_base_seeds(sweep)
    _check_levels(sweep)
    _check_forecast(sweep)
    for arm, overrides in sweep.arms.items():
        if SEED in sweep.overrides | overrides:
            raise UserError(f'arms[{arm!r}]: {SEED} is set by seeds. Leave it out.')
        if sweep.equal != 'steps' and 'train.steps' in overrides:
            raise UserError(
                f'arms[{arm!r}]: train.steps is set by equal={sweep.equal!r}. Leave it '
                'out.'
            )


def _check_base_seeds(sweep: Sweep) -> None:
    if not sweep.base_seeds:
        return
    if sweep.until is not None:
        raise UserError(
            'base_seeds: conflicts with seeds="until(…)", which adds seeds to all '
            'arms. Leave one of them out.'
        )
    has_all_seeds = all(seed in sweep.base_seeds for seed in sweep.seeds)
    if not has_all_seeds or len(sweep.base_seeds) == len(sweep.seeds):
        raise UserError(
            f'base_seeds: {quote(sweep.base_seeds)} must include seeds='
            f'{quote(sweep.seeds)} and others. Add the missing ones.'
        )


def _check_levels(sweep: Sweep) -> None:
    names = {frozenset(levels) for levels in sweep.levels.values()}
    if sweep.levels and (sweep.levels.keys() != sweep.arms.keys() or len(names) > 1):
        raise UserError(
            'levels: must name every arm, each with a level of the same factors. '
            "Write {'arm': {'factor': 'level'}}."
        )


def _check_forecast(sweep: Sweep) -> None:
    for factor, level in sweep.forecast.items():
        known = {levels.get(factor) for levels in sweep.levels.values()} - {None}
        if level not in known:
            raise UserError(
                f'forecast: {factor}={quote(level)} is not a level of a factor. Choose '
                f'one of {", ".join(sorted(known))}.'
            )
        for name in known:
            if not _is_positive(name):
                raise UserError(
                    f'forecast: the level {quote(name)} of {factor} must be a positive '
                    "number, such as '64'. Rename it."
                )
    if sweep.forecast and (sweep.measure.is_of_translations or not sweep.contrasts):
        raise UserError(
            'forecast: the trend is that of declared contrasts on a loss. Declare '
            "contrasts, and set measure to a loss, such as 'test loss'."
        )


def _is_positive(text: str) -> bool:
    try:
        return 0 < float(text) < math.inf
    except ValueError:
        return False


def _check_tuning(sweep: Sweep) -> None:
    tune = sweep.tune
    if tune is None:
        return
    number = len(tune.values)
    are_different = len(set(map(str, tune.values))) == number
    if number < 2 or None in tune.values or not are_different:
        raise UserError(
            f'tune: values={quote(tune.values)} must be two or more different values.'
        )
    reported = [*sweep.seeds, *sweep.base_seeds]
    if not tune.seeds or any(seed in reported for seed in tune.seeds):
        raise UserError(
            f'tune: seeds={quote(tune.seeds)} must differ from the reported seeds.'
        )
    for measure in (sweep.measure, *sweep.further):
        if measure.set == tune.set:
            raise UserError(
                f'tune: set={quote(tune.set)} is the reported set, by measure='
                f'{quote(str(measure))}. Choose another, such as val.'
            )

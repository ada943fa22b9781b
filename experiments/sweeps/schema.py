"""A sweep's file: its question, its arms and its seeds; each pair of these is a run."""

import dataclasses
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from experiments import metrics
from experiments.command_line import flags
from experiments.config.load import flatten
from experiments.config.schema import ExperimentConfig
from experiments.errors import UserError, user_errors
from experiments.metrics.base import OF_MODELS
from experiments.runs import directory
from flaxformer_lite import ranges
from flaxformer_lite.ranges import Choices, NotNegative, nearest, shown

FOLDER = flags.PROJECT / 'configs' / 'sweeps'
RUNS = Path('runs')
SEED = 'train.seed'


class PlannedRun(NamedTuple):
    """A run of a sweep: the one that `experiments.run` makes with the same overrides.

    Attributes:
      arm: its name.
      seed: the run's `train.seed`.
      overrides: what differs from the config file, as a run's directory names it.
      path: the run's directory.
      config: with the overrides in it.
    """

    arm: str
    seed: int
    overrides: dict[str, Any]
    path: Path
    config: ExperimentConfig


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What a sweep's file says.

    Attributes:
      name: the file's, without .py.
      question: one sentence.
      source: where the question or the published numbers are from.
      config: the config file that all arms start from.
      arms: name → overrides of its own, by field: {'train.steps': 600}.
      base: the arm that the others are compared with.
      measure: the set and the score that decide: 'test bleu'.
      overrides: of all arms.
      seeds: each arm is run with each.
      contrasts: pairs (arm, arm) whose differences are the question; without any, those
        of each arm from the base are.
      margin: a difference below it does not matter; 0 for none.
      published: arm → what the source gives for it: {'bleu': 25.8}.
      differs: how the runs differ from the published ones, in data and scale.
      runs: those that follow from all this, arm by arm.
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
    contrasts: tuple[tuple[str, str], ...] = ()
    margin: float = 0.0
    published: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    differs: str = ''
    runs: tuple[PlannedRun, ...] = ()

    @property
    def fields(self) -> set[str]:
        """In which the arms are meant to differ."""
        return {field for overrides in self.arms.values() for field in overrides}


# What a file may say, and what it must.
FIELDS = {
    field.name: field
    for field in dataclasses.fields(Sweep)
    if field.name not in ('name', 'runs')
}
_REQUIRED = ('question', 'source', 'config', 'arms', 'base', 'measure', 'seeds')


def load(path: str | Path) -> Sweep:
    """The sweep of a file; it is looked for here, in the project and in its sweeps.

    Raises:
      UserError: there is no such file, it fails, what it says cannot be a sweep, an
        arm's field or its value cannot be, or two arms are the same run.
    """
    file = flags.find(str(path), (flags.PROJECT, FOLDER))
    values = flags.evaluate(file)
    try:
        if not isinstance(values, dict):
            raise UserError('give it a function get_config() that returns a dictionary')
        sweep = _sweep(file.stem, values)
    except (UserError, ValueError) as error:
        raise UserError(f'{file}: {error}') from None
    sweep = dataclasses.replace(sweep, runs=tuple(_planned_runs(sweep)))
    with user_errors(f'{file}: '):
        _check_scores(sweep)
    return sweep


def _sweep(name: str, values: dict[str, Any]) -> Sweep:
    """Raises UserError or ValueError for what cannot be a sweep."""
    values = {'seeds': (0,)} | values
    for field in ('seeds', 'contrasts'):
        if isinstance(values.get(field), list):
            values[field] = tuple(values[field])
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


def _check_scores(sweep: Sweep) -> None:
    """Raises ValueError for a score that not every run will have."""
    for run in sweep.runs:
        known = (*metrics.by_name(run.config.evaluation.metrics), *OF_MODELS)
        name, _, score = sweep.measure.partition(' ')
        if not name or score not in known:
            raise ValueError(
                f'measure={shown(sweep.measure)} is not the name of a set and one of '
                f"{', '.join(known)}, such as 'test bleu'"
            )
        entries = Annotated[str, Choices(*known, 'parameters')]
        for entry in sweep.published.get(run.arm, {}):
            ranges.check(f'published[{run.arm!r}]', entries, entry)


def _check_types(values: Mapping[str, Any]) -> None:
    """Refuses what is no field of a sweep, what is missing, and other types."""
    for name, value in values.items():
        if name not in FIELDS:
            raise UserError(
                f'a sweep has no field {shown(name)}{nearest(str(name), FIELDS)}; it '
                f'has {", ".join(FIELDS)}'
            )
        kind = FIELDS[name].type
        ranges.check(name, typing.get_origin(kind) or kind, value)
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


def _planned_runs(sweep: Sweep) -> Iterable[PlannedRun]:
    runs: dict[Path, PlannedRun] = {}
    for arm, own in sweep.arms.items():
        for seed in sweep.seeds:
            overrides = {**sweep.overrides, **own, SEED: seed}
            argv = [f'--config.{field}={value}' for field, value in overrides.items()]
            try:
                settings = flags.settings(sweep.config, argv)
            except UserError as error:
                raise UserError(f'sweep {sweep.name}, arm {arm!r}: {error}') from None
            path = RUNS / directory.run_name(settings.name, settings.overrides)
            run = PlannedRun(arm, seed, settings.overrides, path, settings.config)
            if path in runs:
                raise UserError(
                    f'sweep {sweep.name}: the arms {runs[path].arm!r} and {arm!r} are '
                    f'the same run, {path}: leave one out'
                )
            runs[path] = run
    return runs.values()

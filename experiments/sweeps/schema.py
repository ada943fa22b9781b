"""A sweep's file: its question, its arms and its seeds; each pair of these is a run."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from experiments.command_line import flags
from experiments.config.flat import flatten
from experiments.config.schema import ExperimentConfig
from experiments.errors import UserError
from experiments.runs import directory
from flaxformer_lite.ranges import nearest, shown

FOLDER = flags.PROJECT / 'configs' / 'sweeps'
RUNS = Path('runs')
SEED = 'train.seed'
# The scores of a set that may decide, and whether more is better.
SCORES = {
    'bleu': True,
    'chrf': True,
    'accuracy': True,
    'loss': False,
    'perplexity': False,
}
# What a paper may have published of an arm, beside scores.
PUBLISHED = (*SCORES, 'parameters')
_REQUIRED = ('question', 'source', 'config', 'arms', 'base', 'measure')
_MEASURE = re.compile(rf'\S+ ({"|".join(SCORES)})')


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What a sweep's file says.

    Attributes:
      name: the file's, without .py.
      question: one sentence.
      source: where the question or the published numbers are from.
      config: the config file that all arms start from.
      overrides: of all arms, by field: {'train.steps': 600}.
      arms: name → overrides of its own.
      seeds: each arm is run with each.
      base: the arm that the others are compared with.
      measure: the set and the score that decide: 'test bleu'.
      published: arm → what the source gives for it: {'bleu': 25.8}.
      differs: how the runs differ from the published ones, in data and scale.
    """

    name: str
    question: str
    source: str
    config: str
    overrides: dict[str, Any]
    arms: dict[str, dict[str, Any]]
    seeds: tuple[int, ...]
    base: str
    measure: str
    published: dict[str, dict[str, float]]
    differs: str


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run of a sweep.

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


def load(path: str | Path) -> Sweep:
    """The sweep of a file; it is looked for here, in the project and in its sweeps.

    Raises:
      UserError: there is no such file, it fails, or what it says cannot be a sweep.
    """
    file = flags.find(str(path), (flags.PROJECT, FOLDER))
    values = flags.evaluate(file)
    if isinstance(values, ConfigDict):
        values = values.to_dict()
    try:
        return _checked(file.stem, values)
    except UserError as error:
        raise UserError(f'{file}: {error}') from None


def _checked(name: str, values: Any) -> Sweep:
    if not isinstance(values, Mapping):
        raise UserError('give it a function get_config() that returns a dictionary')
    _check_names(values)
    sweep = Sweep(
        name=name,
        question=_text(values, 'question'),
        source=_text(values, 'source'),
        config=_text(values, 'config'),
        overrides=_overrides('overrides', values.get('overrides', {})),
        arms=_arms(values['arms']),
        seeds=_seeds(values.get('seeds', (0,))),
        base=_text(values, 'base'),
        measure=_text(values, 'measure'),
        published=_published(values.get('published', {})),
        differs=values.get('differs', ''),
    )
    _check_arm('base', sweep.base, sweep)
    for arm in sweep.published:
        _check_arm('published', arm, sweep)
    if not _MEASURE.fullmatch(sweep.measure):
        raise UserError(
            f'measure={shown(sweep.measure)} is not the name of a set and one of '
            f"{', '.join(SCORES)}, such as 'test bleu'"
        )
    return sweep


def _check_names(values: Mapping[str, Any]) -> None:
    """Refuses what is no field of a sweep, and a sweep that lacks one."""
    known = [field.name for field in dataclasses.fields(Sweep) if field.name != 'name']
    for name in values:
        if name not in known:
            raise UserError(
                f'a sweep has no field {shown(name)}{nearest(str(name), known)}; it '
                f'has {", ".join(known)}'
            )
    for name in _REQUIRED:
        if name not in values:
            raise UserError(f'{name} is missing: give it')
    if not isinstance(values.get('differs', ''), str):
        raise UserError(f'differs={shown(values["differs"])}: give a text')


def _text(values: Mapping[str, Any], name: str) -> str:
    value = values[name]
    if not isinstance(value, str) or not value.strip():
        raise UserError(f'{name}={shown(value)}: give a text')
    return value


def _overrides(name: str, values: Any) -> dict[str, Any]:
    """Overrides by dotted field, of a dictionary that may be nested."""
    if not isinstance(values, Mapping):
        raise UserError(
            f'{name}={shown(values)}: give a dictionary of fields and values'
        )
    flat = flatten(values)
    for field, value in flat.items():
        if not isinstance(value, str | int | float):
            raise UserError(
                f'{name}: {field}={shown(value)} is no text, number or truth value; '
                'leave it out for the default'
            )
        if field == SEED:
            raise UserError(f'{name}: {SEED}={value}: give it in seeds')
    return flat


def _arms(values: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(values, Mapping) or not values:
        raise UserError(
            f'arms={shown(values)}: give a dictionary of names and overrides'
        )
    arms = {}
    for name, overrides in values.items():
        is_text = isinstance(name, str) and name.isprintable()
        if not is_text or name != name.strip() or not name:
            raise UserError(f'arms: {shown(name)} cannot be the name of an arm')
        arms[name] = _overrides(f'arms[{name!r}]', overrides)
    return arms


def _seeds(values: Any) -> tuple[int, ...]:
    is_list = isinstance(values, list | tuple) and values
    if not is_list or not all(type(seed) is int and seed >= 0 for seed in values):
        raise UserError(f'seeds={shown(values)}: give whole numbers from 0, (0, 1, 2)')
    if len(set(values)) < len(values):
        raise UserError(f'seeds={shown(values)}: one is there twice')
    return tuple(values)


def _published(values: Any) -> dict[str, dict[str, float]]:
    if not isinstance(values, Mapping):
        raise UserError(
            f'published={shown(values)}: give a dictionary of arms and numbers'
        )
    for arm, numbers in values.items():
        if not isinstance(numbers, Mapping):
            raise UserError(f'published[{arm!r}]={shown(numbers)}: give a dictionary')
        for name, number in numbers.items():
            if name not in PUBLISHED:
                raise UserError(
                    f'published[{arm!r}]: {shown(name)} is none of '
                    f'{", ".join(PUBLISHED)}'
                )
            if type(number) not in (int, float):
                raise UserError(
                    f'published[{arm!r}]: {name}={shown(number)}: give a number'
                )
    return {arm: dict(numbers) for arm, numbers in values.items()}


def _check_arm(field: str, arm: str, sweep: Sweep) -> None:
    if arm not in sweep.arms:
        raise UserError(
            f'{field}: there is no arm {arm!r}{nearest(arm, sweep.arms)}; there is '
            f'{", ".join(sweep.arms)}'
        )


def cells(sweep: Sweep) -> list[Cell]:
    """The runs of a sweep, arm by arm.

    Each is the run, in the directory, that `experiments.run` makes with the same
    config file and overrides.

    Raises:
      UserError: an arm's field does not exist or its value cannot be, or two arms are
        the same run.
    """
    found: dict[Path, Cell] = {}
    for arm in sweep.arms:
        settings = _settings(sweep, arm)
        for seed in sweep.seeds:
            of_seed = settings.with_seed(seed)
            path = RUNS / directory.run_name(of_seed.name, of_seed.overrides)
            cell = Cell(arm, seed, of_seed.overrides, path, of_seed.config)
            twin = found.setdefault(path, cell)
            if twin is not cell:
                raise UserError(
                    f'sweep {sweep.name}: the arms {twin.arm!r} and {arm!r} are the '
                    f'same run, {path}: leave one out'
                )
    return list(found.values())


def _settings(sweep: Sweep, arm: str) -> flags.Settings:
    """Those of an arm, whatever its seed."""
    overrides = {**sweep.overrides, **sweep.arms[arm]}
    argv = [f'--config.{field}={value}' for field, value in overrides.items()]
    try:
        return flags.settings(sweep.config, argv)
    except UserError as error:
        raise UserError(f'sweep {sweep.name}, arm {arm!r}: {error}') from None

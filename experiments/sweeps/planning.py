"""Which runs a sweep has: those that its file names, and those that results ask for.

Results decide two things: which of the values that were tried an arm is reported with
(`tune`), and whether seeds are added (`seeds='until(…)'`). Nothing of that is kept: the
same file and the same results give the same runs, wherever a sweep was stopped.
"""

import dataclasses
import functools
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import numpy as np

from experiments import metrics
from experiments.command_line import console, flags
from experiments.config.load import flatten
from experiments.config.schema import ExperimentConfig
from experiments.errors import UserError, user_errors
from experiments.metrics.base import OF_MODELS
from experiments.runs import directory, reading
from experiments.runs.reading import Outcome
from experiments.sweeps import schema
from experiments.sweeps.schema import SEED, PlannedRun, Sweep, Tuning, Until
from flaxformer_lite import ranges
from flaxformer_lite.config import spec
from flaxformer_lite.ranges import Choices, shown

RUNS = Path('runs')
_HOPELESS = 2.0  # times the width that is wanted, after all seeds

Scores = dict[str, dict[int, float]]


def load(path: str | Path) -> Sweep:
    """The sweep of a file, with the runs that it has by the results that are there.

    Raises:
      UserError: as `schema.load`; an arm's field or its value cannot be, or two arms
        are the same run.
    """
    return plan(schema.load(path))


def plan(sweep: Sweep) -> Sweep:
    """The sweep with its trials, and with its runs as far as results tell them.

    Raises:
      UserError: as `load`.
    """
    with user_errors(f'sweep {sweep.name}: '):
        trials = tuple(_trials(sweep))
        _check(sweep, trials)
        values = chosen(sweep, trials)
        still_tried = {run.arm for run in trials if not has_ended(run)}
        runs, ended = _reported(sweep, values, not still_tried)
        _check(sweep, runs)
    return dataclasses.replace(sweep, trials=trials, runs=runs, ended=ended)


def _trials(sweep: Sweep) -> Iterable[PlannedRun]:
    """Each arm with each value, scored on the set that decides among these."""
    if sweep.tune is None:
        return
    only = {'evaluation.sets': sweep.tune.set}
    measure = f'{sweep.tune.set} {sweep.measure.split()[1]}'
    for arm in sweep.arms:
        for value in tried(sweep.tune):
            for seed in sweep.tune.seeds:
                run = _run(sweep, arm, seed, value, only)
                yield run._replace(measure=measure)


def tried(tuning: Tuning) -> list[Any]:
    """The values that each arm tries, in their order."""
    number = len(tuning.values)
    budget = min(tuning.budget or number, number)
    draw = np.random.default_rng(0).choice(number, budget, replace=False)
    return [tuning.values[i] for i in sorted(draw)]


def chosen(sweep: Sweep, trials: Collection[PlannedRun]) -> dict[str, Any]:
    """Arm → the value with the best mean, where all its trials have ended.

    A value of which a trial has no score is not chosen. Without trials it is None.
    """
    if sweep.tune is None:
        return dict.fromkeys(sweep.arms)
    values = {}
    for arm in sweep.arms:
        of_arm = [run for run in trials if run.arm == arm]
        means = {k: fmean(v) for k, v in trial_scores(of_arm).items()}
        if means and all(map(has_ended, of_arm)):
            best = min if _is_lower_better(sweep, of_arm) else max
            values[arm] = best(means, key=lambda value: means[value])
    return values


def trial_scores(trials: Iterable[PlannedRun]) -> dict[Any, list[float]]:
    """Value → the scores of an arm's trials with it, where all have one."""
    found: dict[Any, list[float | None]] = {}
    for run in trials:
        found.setdefault(run.value, []).append(score(run))
    return {
        value: known
        for value, scores in found.items()
        if len(known := [x for x in scores if x is not None]) == len(scores)
    }


def _is_lower_better(sweep: Sweep, trials: Iterable[PlannedRun]) -> bool:
    kind = sweep.measure.split()[1]
    if kind in OF_MODELS:
        return kind in ('loss', 'perplexity')
    found = (x for run in trials for x in result(run).get('evaluations', {}).values())
    return any(kind in scores.get('lower_is_better', ()) for scores in found)


def _reported(
    sweep: Sweep, values: Mapping[str, Any], is_tuned: bool
) -> tuple[tuple[PlannedRun, ...], str]:
    """The runs of arms whose values are known, and why there will be no more."""
    until = sweep.until
    if until is None:
        runs = _runs(sweep, values, len(sweep.seeds))
        return runs, 'all seeds' if is_tuned else ''
    number = until.first
    while True:
        runs = _runs(sweep, values, number)
        if not is_tuned or not all(map(has_ended, runs)):
            return runs, ''
        ended = _enough(sweep, until, runs)  # at the latest after all seeds
        if ended:
            return runs, ended
        number += until.first


def _runs(
    sweep: Sweep, values: Mapping[str, Any], number: int
) -> tuple[PlannedRun, ...]:
    seeds = sweep.seeds[:number]
    return tuple(
        _run(sweep, arm, seed, value) for arm, value in values.items() for seed in seeds
    )


def _enough(sweep: Sweep, until: Until, runs: Collection[PlannedRun]) -> str:
    """Why no seeds are added to some; empty where they are."""
    from experiments.reports import analysis

    found = scores(runs)
    seeds = len({run.seed for run in runs})
    pairs = [pair for pair in sweep.contrasts if found.keys() >= set(pair)]
    base = None if pairs else sweep.base
    contrasts = []
    if pairs or base in found:
        contrasts = analysis.compare(found, base, pairs, looks=until.looks)
    widths = [x.high - x.effect for x in contrasts if x.high is not None]
    if not widths:
        return f'after {seeds} seeds no interval can be told'
    widest = max(widths)
    said = f'after {seeds} seeds the widest interval is ± {console.cell(widest)}'
    if widest <= until.half_width or seeds >= until.most:
        return said
    # Intervals narrow as the root of the number of seeds.
    least = widest * np.sqrt(seeds / until.most)
    if least > _HOPELESS * until.half_width:
        return f'{said}, and {until.most} would make it ± {console.cell(least)}'
    return ''


def scores(runs: Iterable[PlannedRun]) -> Scores:
    """What decides, of the runs that have finished, by arm and seed."""
    found: Scores = {}
    for run in runs:
        number = score(run)
        if number is not None:
            found.setdefault(run.arm, {})[run.seed] = number
    return found


def read_outcome(path: Path) -> Outcome:
    """The outcome of the run in a directory; files that cannot be read have failed."""
    try:
        return reading.read_outcome(path)
    except UserError as error:
        return Outcome(reading.FAILED, str(error))


def has_ended(run: PlannedRun) -> bool:
    """Whether it has finished, diverged or failed."""
    ends = (reading.FINISHED, reading.DIVERGED, reading.FAILED)
    return read_outcome(run.path).status in ends


def result(run: PlannedRun) -> dict[str, Any]:
    """The result of a run; empty where it has none that can be read."""
    if read_outcome(run.path).status != reading.FINISHED:
        return {}
    return reading.read_result(run.path)


def score(run: PlannedRun) -> float | None:
    """What decides of a finished run."""
    name, kind = run.measure.split()
    return result(run).get('evaluations', {}).get(name, {}).get(kind)


def _check(sweep: Sweep, runs: Iterable[PlannedRun]) -> None:
    """Raises for runs that are the same, and for a score that not every run has."""
    by_path: dict[Path, PlannedRun] = {}
    name, _, kind = sweep.measure.partition(' ')
    for run in runs:
        other = by_path.setdefault(run.path, run)
        if other is not run:
            raise UserError(
                f'sweep {sweep.name}: the arms {other.arm!r} and {run.arm!r} are the '
                f'same run, {run.path}: leave one out'
            )
        known = (*metrics.by_name(run.config.evaluation.metrics), *OF_MODELS)
        if not name or kind not in known:
            raise ValueError(
                f'measure={shown(sweep.measure)} is not the name of a set and one of '
                f"{', '.join(known)}, such as 'test bleu'"
            )
        entries = Annotated[str, Choices(*known, 'parameters')]
        for entry in sweep.published.get(run.arm, {}):
            ranges.check(f'published[{run.arm!r}]', entries, entry)


def _run(
    sweep: Sweep, arm: str, seed: int, value: Any, only: Mapping[str, Any] = {}
) -> PlannedRun:
    overrides = {**sweep.overrides, **sweep.arms[arm], SEED: seed, **only}
    try:
        if value is not None:
            assert sweep.tune is not None
            overrides |= _with_value(sweep, overrides, sweep.tune.field, value)
        if sweep.equal != 'steps':
            overrides['train.steps'] = _equal_steps(sweep, overrides)
        name, config, changed = _settings(sweep.config, overrides)
    except UserError as error:
        raise UserError(f'sweep {sweep.name}, arm {arm!r}: {error}') from None
    path = RUNS / directory.run_name(name, changed)
    return PlannedRun(arm, seed, changed, path, config, sweep.measure, value)


def _settings(config: str, overrides: Mapping[str, Any]) -> Any:
    argv = [f'--config.{field}={value}' for field, value in overrides.items()]
    settings = flags.settings(config, argv)
    return settings.name, settings.config, settings.overrides


def _with_value(
    sweep: Sweep, overrides: Mapping[str, Any], field: str, value: Any
) -> dict[str, Any]:
    """The override of a field, or of the field that has the part of an argument."""
    _, config, _ = _settings(sweep.config, overrides)
    flat = flatten(config.to_dict())
    part, _, argument = field.rpartition('.')
    if field in flat or part not in flat:
        return {field: value}  # what is no field at all is refused by its name
    name, arguments = spec.parse(flat[part])
    arguments[argument] = value
    given = ', '.join(f'{key}={given!r}' for key, given in arguments.items())
    return {part: f'{name}({given})'}


def _equal_steps(sweep: Sweep, overrides: Mapping[str, Any]) -> int:
    """So many that the arm gets as much as the base in its own steps."""
    base = {**sweep.overrides, **sweep.arms[sweep.base]}
    steps, of_base = _steps_and_cost(sweep, base)
    _, own = _steps_and_cost(sweep, overrides)
    return max(1, round(steps * of_base / own))


def _steps_and_cost(sweep: Sweep, overrides: Mapping[str, Any]) -> tuple[int, float]:
    """A config's steps, and what one of them costs, in tokens or FLOPs."""
    _, config, _ = _settings(sweep.config, overrides)
    if not config.train.steps:
        raise UserError(f'equal={sweep.equal!r} needs train.steps, which is 0')
    if sweep.equal == 'tokens':
        return config.train.steps, config.batch.tokens
    return config.train.steps, _flops(config)


@functools.lru_cache(maxsize=1024)
def _flops(config: ExperimentConfig) -> float:
    from experiments.costs.ledger import ledger

    book = ledger(config)
    return book['batch']['tokens'] * book['flops_per_token']['total']

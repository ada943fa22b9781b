"""The runs of a sweep: fixed ones, and those that depend on results.

Results decide the tuned value of an arm (`tune`), and whether seeds are added
(`seeds='until(…)'`). The same file and results give the same runs, so an interrupted
sweep can resume.
"""

import collections
import dataclasses
import functools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments import metrics, storage
from experiments.command_line import console, flags
from experiments.config.schema import ExperimentConfig
from experiments.config.user_modules import NeedsConsent
from experiments.errors import UserError, prefix_errors, user_errors
from experiments.evaluation import sets
from experiments.metrics.base import OF_MODELS
from experiments.runs import directory, reading
from experiments.runs.reading import RunStatus
from experiments.sweeps import schema
from experiments.sweeps.schema import SEED, PlannedRun, Sweep, Until
from flaxformer_lite.validation import Choices, quote

if TYPE_CHECKING:
    from experiments.reports import analysis

_TOKENS_PER_STEP = operator.attrgetter('batch.tokens')
_HOPELESS = 2.0  # times the wanted half-width, after all seeds
Overrides = Mapping[str, Any]
Values = Mapping[str, Any]  # arm → the value it is reported with


def load(path: str | Path) -> Sweep:
    """Loads a sweep file, and plans its runs from the existing results."""
    return plan(schema.load(path))


def plan(sweep: Sweep) -> Sweep:
    """Returns the sweep with its trials, and the runs that results allow so far.

    Keeps the runs that the sweep already has.
    """
    with user_errors(f'sweep {sweep.name}: '):
        trials = sweep.trials or _trials(sweep)
        is_tuned = all(map(has_ended, trials))
        values = dict.fromkeys(sweep.arms)
        if sweep.tune is not None:
            found = tried(sweep, trials)
            values = {arm: value for arm, _, value in found if value is not None}
        runs, ended = _reported(sweep, values, is_tuned)
    return dataclasses.replace(
        sweep, trials=tuple(trials), runs=tuple(runs), ended=ended
    )


def _trials(sweep: Sweep) -> list[PlannedRun]:
    tune = sweep.tune
    if tune is None:
        return []
    only = {'evaluation.sets': tune.set}
    trials = []
    for arm in sweep.arms:
        for value in tune.tried:
            for seed in tune.seeds:
                run = _planned_run(sweep, arm, seed, value, only)
                measure = dataclasses.replace(run.measure, set=tune.set)
                trials.append(run._replace(measure=measure, further=()))
    _check_runs(sweep, trials)
    return trials


class Tried(NamedTuple):
    """The values that an arm tried.

    Attributes:
      scores: Scores of complete trials by value.
      chosen: The best value; None until all trials have ended.
    """

    arm: str
    scores: dict[Any, list[float]]
    chosen: Any


def tried(sweep: Sweep, trials: Iterable[PlannedRun]) -> list[Tried]:
    found = []
    for arm in sweep.arms:
        of_arm = [run for run in trials if run.arm == arm]
        by_value = collections.defaultdict(list)
        for run in of_arm:
            by_value[run.value].append(score(run))
        known = {value: of for value, of in by_value.items() if None not in of}
        chosen = None
        if known and all(map(has_ended, of_arm)):
            best = max if of_arm[0].measure.higher_is_better else min
            chosen = best(known, key=lambda value: fmean(known[value]))
        found.append(Tried(arm, known, chosen))
    return found


def _reported(
    sweep: Sweep, values: Values, is_tuned: bool
) -> tuple[list[PlannedRun], str]:
    if sweep.until is None:
        runs = _runs_of_seeds(
            sweep, values, {arm: sweep.seeds_of(arm) for arm in values}
        )
        return runs, 'all seeds' if is_tuned else ''
    number = sweep.until.first
    while True:
        seeds = sweep.seeds[:number]
        runs = _runs_of_seeds(sweep, values, dict.fromkeys(values, seeds))
        if not is_tuned or not all(map(has_ended, runs)):
            return runs, ''
        ended = _enough(sweep, sweep.until, runs)  # true after all seeds at the latest
        if ended:
            return runs, ended
        number += sweep.until.first


def _runs_of_seeds(
    sweep: Sweep, values: Values, seeds: Mapping[str, Sequence[int]]
) -> list[PlannedRun]:
    known = {(run.arm, run.seed, run.value): run for run in sweep.runs}
    wanted = [
        (arm, seed, value) for arm, value in values.items() for seed in seeds[arm]
    ]
    runs = [known.get(each) or _planned_run(sweep, *each) for each in wanted]
    if not known.keys() >= set(wanted):
        _check_runs(sweep, runs)
    return runs


def _enough(sweep: Sweep, until: Until, runs: Sequence[PlannedRun]) -> str:
    """Returns why no seeds are added to the runs, or '' to add some."""
    from experiments.reports import analysis

    found = scores(runs)
    seeds = len({run.seed for run in runs})
    bases = sweep.bases(sweep.base)
    pairs = [pair for pair in sweep.contrasts if found.keys() >= set(pair)]
    pairs = pairs or analysis.pairs_with(bases, found)
    contrasts = analysis.compare(
        found, contrasts=pairs, design=design(sweep), data=bases
    )
    widths = [x.high - x.effect for x in contrasts if x.high is not None]
    if not widths:
        return f'no confidence interval after {seeds} seeds'
    widest = max(widths)
    said = f'after {seeds} seeds, the widest 95% CI is ± {console.cell(widest)}'
    if widest <= until.half_width or seeds >= until.most:
        return said
    # Intervals narrow with the square root of the number of seeds.
    least = widest * math.sqrt(seeds / until.most)
    if least > _HOPELESS * until.half_width:
        return f'{said}, and {until.most} seeds would give ± {console.cell(least)}'
    return ''


def design(sweep: Sweep) -> 'analysis.Design':
    """Returns what the intervals of a sweep take into account."""
    from experiments.reports import analysis

    found = analysis.Design(sweep.looks, not sweep.base_seeds)
    tune = sweep.tune
    if tune is None:
        return found
    trials = {}
    for arm, by_value, chosen in tried(sweep, sweep.trials):
        if chosen is None:
            continue
        trials[arm] = analysis.Trials(
            means=tuple(map(fmean, by_value.values())),
            number=len(tune.seeds),
            higher_is_better=sweep.trials[0].measure.higher_is_better,
        )
    return found._replace(trials=trials)


def scores(runs: Iterable[PlannedRun]) -> dict[str, dict[int, float]]:
    """Returns the scores of finished runs by arm and seed."""
    found = collections.defaultdict(dict)
    for run in runs:
        number = score(run)
        if number is not None:
            found[run.arm][run.seed] = number
    return found


def outcome(run: PlannedRun) -> RunStatus:
    """Returns the status of a run: failed if a file is unreadable."""
    try:
        return reading.run_status(run.path)
    except UserError as error:
        return RunStatus(reading.FAILED, str(error))


def has_ended(run: PlannedRun) -> bool:
    """Returns whether a run has ended, with or without a result."""
    ends = (reading.FINISHED, reading.DIVERGED, reading.FAILED)
    return outcome(run).status in ends


def result(run: PlannedRun) -> dict[str, Any]:
    """Returns the result of a run; empty unless it has finished."""
    return outcome(run).result


def score(run: PlannedRun) -> float | None:
    evaluations = result(run).get('evaluations', {})
    return evaluations.get(run.measure.set, {}).get(run.measure.score)


def _check_runs(sweep: Sweep, runs: Sequence[PlannedRun]) -> None:
    taken: dict[ExperimentConfig | Path, PlannedRun] = {}
    for run in runs:
        for of_one in (run.config, run.path):
            other = taken.setdefault(of_one, run)
            if other is not run:
                raise ValueError(
                    f'{other} and {run} are equal or share the directory {run.path}. '
                    'Leave one out, or rename an arm.'
                )
        if storage.exists(run.path / directory.CONFIG):
            there = directory.state(run.path, run.config.to_dict())
            if there == directory.GOES_FURTHER:
                raise UserError(
                    f'{run.path}: trained with fewer train.steps or train.epochs. Move '
                    'it away.'
                )
        scored = run.config.evaluation.sets
        for measure in (run.measure, *run.further):
            name = measure.set
            if scored and name not in sets.split_names(scored, [name]):
                raise ValueError(
                    f'measure={quote(str(measure))}: evaluation.sets={quote(scored)} '
                    f'lacks {name!r}. Add it, or measure a listed set.'
                )
        known = metrics.by_name(run.config.evaluation.metrics)
        publishable = Choices(*known, *OF_MODELS, 'parameters')
        for entry in sweep.published.get(run.arm, {}):
            publishable.check(f'published[{run.arm!r}]', entry)


def _planned_run(
    sweep: Sweep, arm: str, seed: int, value: Any, only: Mapping[str, Any] = {}
) -> PlannedRun:
    overrides = {**sweep.overrides, **sweep.arms[arm], SEED: seed, **only}
    with prefix_errors(f'sweep {sweep.name}, arm {arm!r}'):
        if sweep.tune is not None:
            overrides[sweep.tune.field] = value
        if sweep.equal != 'steps':
            overrides['train.steps'] = _equal_steps(sweep, overrides)
        config, _, changed = _settings(sweep, overrides)
        spec = config.evaluation.metrics
        measure = sweep.measure.resolve(spec)
        further = tuple(other.resolve(spec) for other in sweep.further)
    path = directory.RUNS / sweep.name / directory.folder_name(arm)
    if value is not None:
        path /= directory.folder_name(str(value))
    path /= f'seed={seed}'
    crossed = sweep.crossed
    return PlannedRun(
        arm, seed, changed, path, config, measure, value, crossed, further
    )


def _settings(sweep: Sweep, overrides: Overrides) -> flags.ConfigFlags:
    try:
        return flags.settings(sweep.config, overrides)
    except NeedsConsent as error:
        raise UserError(error.without_flag) from None


def _equal_steps(sweep: Sweep, overrides: Overrides) -> int:
    config = _settings(sweep, overrides).config
    of_base = sweep.overrides | sweep.arms[sweep.base]
    base = _settings(sweep, of_base).config
    if not base.train.steps:
        raise UserError(f'equal={sweep.equal!r} needs train.steps, which is 0')
    cost = _flops_per_step if sweep.equal == 'flops' else _TOKENS_PER_STEP
    allowed = base.train.steps * cost(base)
    return max(1, round(allowed / cost(config)))


@functools.cache
def _flops_per_step(config: ExperimentConfig) -> float:
    from experiments.costs.ledger import ledger

    return ledger(config)['flops']['batch']

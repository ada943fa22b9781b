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
from experiments.config.schema import ExperimentConfig, check_value
from experiments.config.schema import fields as config_fields
from experiments.config.user_modules import without_trust_flag
from experiments.errors import UserError, prefix_errors, user_errors
from experiments.evaluation import sets
from experiments.metrics.base import MODEL_SCORES
from experiments.runs import directory, reading
from experiments.runs.reading import RunStatus
from experiments.sweeps import looks, schema
from experiments.sweeps.schema import SEED, PlannedRun, StoppingRule, Sweep
from flaxformer_lite.validation import Choices, quote

if TYPE_CHECKING:
    from experiments.sweeps import analysis

_TOKENS_PER_STEP = operator.attrgetter('batch.tokens')
# Stop early if even all seeds would exceed the target half-width by this factor.
_GIVE_UP_RATIO = 2.0
Overrides = Mapping[str, Any]
Values = Mapping[str, Any]  # arm → its chosen value of the tuned field


def load(path: str | Path) -> Sweep:
    """Loads a sweep file, and plans its runs from the existing results."""
    sweep = schema.load(path)
    return plan(dataclasses.replace(sweep, reports=looks.read(sweep)))


def plan(sweep: Sweep) -> Sweep:
    """Returns the sweep with its trials, and the runs that results allow so far.

    Keeps the runs that the sweep already has.
    """
    with user_errors(f'sweep {sweep.name}: '):
        trials = sweep.trials or _trials(sweep)
        is_tuned = all(map(has_ended, trials))
        values = dict.fromkeys(sweep.arms)
        if sweep.tune is not None:
            found = arm_trials(sweep, trials)
            values = {arm: value for arm, _, value in found if value is not None}
        runs, ended = _reported_runs(sweep, values, is_tuned)
        _check_texts([*trials, *runs])
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
            for run in _planned_runs(sweep, arm, tune.seeds, value, only):
                measure = dataclasses.replace(run.measure, set=tune.set)
                trials.append(run._replace(measure=measure, further=()))
    _check_runs(sweep, trials)
    return trials


class ArmTrials(NamedTuple):
    """The tuning trials of an arm.

    Attributes:
      scores: Scores by value, one per seed. Excludes values with a trial without one.
      chosen: The value with the best mean score; None until all trials have ended.
    """

    arm: str
    scores: dict[Any, list[float]]
    chosen: Any


def arm_trials(sweep: Sweep, trials: Iterable[PlannedRun]) -> list[ArmTrials]:
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
        found.append(ArmTrials(arm, known, chosen))
    return found


def _reported_runs(
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
        # Not empty after all seeds, so the loop ends.
        ended = _stop_reason(sweep, sweep.until, runs)
        if ended:
            return runs, ended
        number += sweep.until.first


def _runs_of_seeds(
    sweep: Sweep, values: Values, seeds: Mapping[str, Sequence[int]]
) -> list[PlannedRun]:
    known = {(run.arm, run.seed, run.value): run for run in sweep.runs}
    runs = []
    for arm, value in values.items():
        new = [seed for seed in seeds[arm] if (arm, seed, value) not in known]
        planned = iter(_planned_runs(sweep, arm, new, value) if new else ())
        for seed in seeds[arm]:
            runs.append(known.get((arm, seed, value)) or next(planned))
    if not known.keys() >= {(run.arm, run.seed, run.value) for run in runs}:
        _check_runs(sweep, runs)
    return runs


def _stop_reason(sweep: Sweep, until: StoppingRule, runs: Sequence[PlannedRun]) -> str:
    """Returns why no seeds are added to the runs, or '' to add some."""
    from experiments.sweeps import analysis

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
    summary = f'after {seeds} seeds, the widest 95% CI is ± {console.cell(widest)}'
    if widest <= until.half_width or seeds >= until.most:
        return summary
    # Intervals narrow with the square root of the number of seeds.
    least = widest * math.sqrt(seeds / until.most)
    if least > _GIVE_UP_RATIO * until.half_width:
        return f'{summary}, and {until.most} seeds would give ± {console.cell(least)}'
    return ''


def design(sweep: Sweep) -> 'analysis.Design':
    """Returns what the intervals of a sweep take into account."""
    from experiments.sweeps import analysis

    found = analysis.Design(sweep.looks, not sweep.base_seeds)
    if sweep.tune is None:
        return found
    trials = {}
    for arm, by_value, chosen in arm_trials(sweep, sweep.trials):
        if chosen is None:
            continue
        trials[arm] = analysis.Trials(
            means=tuple(map(fmean, by_value.values())),
            number=len(sweep.tune.seeds),
            higher_is_better=sweep.trials[0].measure.higher_is_better,
        )
    return found._replace(trials=trials)


def margin(sweep: Sweep, mean: float) -> float | None:
    """Returns the smallest difference that matters next to a base, if declared.

    Args:
      mean: The base's mean score.
    """
    if not sweep.margin_share:
        return sweep.margin or None
    perfect = _perfect_score(sweep.all_runs[0])
    assert perfect is not None
    return sweep.margin_share * abs(perfect - mean) or None


def _perfect_score(run: PlannedRun) -> float | None:
    return run.measure.perfect(run.config.evaluation.metrics)


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


def _check_texts(runs: Iterable[PlannedRun]) -> None:
    """Raises UserError if finished runs on the same data have different text."""
    known = []
    for run in runs:
        data = run.config.data, run.config.filters
        known.append((run.path, data, reading.texts(result(run))))
    reading.check_texts(reading.text_differences(known))


def _check_runs(sweep: Sweep, runs: Sequence[PlannedRun]) -> None:
    owners: dict[ExperimentConfig | Path, PlannedRun] = {}
    for run in runs:
        for key in (run.config, run.path):
            other = owners.setdefault(key, run)
            if other is not run:
                raise ValueError(
                    f'{other} and {run} are equal or share the directory {run.path}. '
                    'Leave one out, or rename an arm.'
                )
        if storage.exists(run.path / directory.CONFIG):
            there = directory.state(run.path, run.config.to_dict())
            if there == directory.EXTENDED:
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
        if sweep.margin_share and _perfect_score(run) is None:
            raise ValueError(
                f'margin: {run.measure.score} has no known perfect score, so its '
                'remaining error is unknown. Set a number.'
            )
        known = metrics.by_name(run.config.evaluation.metrics)
        publishable = Choices(*known, *MODEL_SCORES, 'parameters')
        for entry in sweep.published.get(run.arm, {}):
            publishable.check(f'published[{run.arm!r}]', entry)


def _planned_runs(
    sweep: Sweep,
    arm: str,
    seeds: Sequence[int],
    value: Any,
    only: Mapping[str, Any] = {},
) -> list[PlannedRun]:
    """Plans the runs of an arm and a value, whose configs differ in their seeds."""
    overrides = {**sweep.overrides, **sweep.arms[arm], SEED: seeds[0], **only}
    with prefix_errors(f'sweep {sweep.name}, arm {arm!r}'):
        if sweep.tune is not None:
            overrides[sweep.tune.field] = value
        if sweep.equal != 'steps':
            overrides['train.steps'] = _equal_steps(sweep, overrides)
        found = _config_flags(sweep, overrides)
        spec = found.config.evaluation.metrics
        measure = sweep.measure.resolve(spec)
        further = tuple(other.resolve(spec) for other in sweep.further)
        for seed in seeds:
            check_value(SEED, config_fields()[SEED].kind, seed)
    path = directory.RUNS / sweep.name / directory.folder_name(arm)
    if value is not None:
        path /= directory.folder_name(str(value))
    runs = []
    others = measure, value, sweep.crossed, further
    for seed in seeds:
        train = dataclasses.replace(found.config.train, seed=seed)
        config = dataclasses.replace(found.config, train=train)
        changed = found.overrides | {SEED: seed}
        if seed == found.defaults[SEED]:
            del changed[SEED]
        where = path / f'seed={seed}'
        runs.append(PlannedRun(arm, seed, changed, where, config, *others))
    return runs


def _config_flags(sweep: Sweep, overrides: Overrides) -> flags.ConfigFlags:
    with without_trust_flag():
        return flags.settings(sweep.config, overrides)


def _equal_steps(sweep: Sweep, overrides: Overrides) -> int:
    config = _config_flags(sweep, overrides).config
    of_base = sweep.overrides | sweep.arms[sweep.base]
    base = _config_flags(sweep, of_base).config
    if not base.train.steps:
        raise UserError(f'equal={sweep.equal!r} needs train.steps, which is 0')
    cost = _flops_per_step if sweep.equal == 'flops' else _TOKENS_PER_STEP
    allowed = base.train.steps * cost(base)
    return max(1, round(allowed / cost(config)))


@functools.cache
def _flops_per_step(config: ExperimentConfig) -> float:
    from experiments.costs.ledger import ledger

    return ledger(config)['flops']['batch']

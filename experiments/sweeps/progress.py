"""Output of a sweep: its plan, the runs that ended, and their scores."""

import collections
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from experiments.command_line import console
from experiments.runs import reading
from experiments.sweeps import planning
from experiments.sweeps.schema import PlannedRun, Sweep

_SIMILAR = 4.0  # factor between the FLOPs of steps


def heading(sweep: Sweep) -> str:
    arms, seeds = len(sweep.arms), len(sweep.seeds)
    most = 'at most ' if sweep.until else ''
    product = f'{console.count_noun(arms, "arm")} × {console.count_noun(seeds, "seed")}'
    if sweep.base_seeds:
        product += f', {len(sweep.base_seeds)} of the base'
    runs = f'{most}{_number_reported(sweep)} ({product})'
    if sweep.tune is not None:
        trials = len(sweep.trials) // arms
        tried = console.count_noun(trials, 'trial')
        runs = f'{runs}, after {tried} of {sweep.tune.field} per arm'
    # Only planned runs know the direction of a metric.
    measure = sweep.all_runs[0].measure
    decides = f'{sweep.measure}, {measure.direction}'
    if sweep.further:
        decides += f'; also {", ".join(map(str, sweep.further))}'
    return console.facts(
        {
            'sweep': sweep.name,
            'question': sweep.question,
            'source': sweep.source,
            'runs': runs,
            'base': sweep.base,
            'measure': decides,
            **({'margin': sweep.margin} if sweep.margin else {}),
        }
    )


def plan(sweep: Sweep) -> str:
    """Formats the runs with their costs, and the total of unfinished runs.

    The time of a run is its arm's mean. The total includes runs after tuning.
    """
    arms = collections.defaultdict(list)
    for run in sweep.all_runs:
        arms[run.title].append(run)
    # The optimizer changes neither parameters nor FLOPs.
    tune = sweep.tune
    is_same_for_arm = tune is None or tune.field.startswith('optimizer.')
    costs_of = {}
    rows = []
    left = []
    spent = []
    planned = {run.arm for run in sweep.runs}
    for title, runs in arms.items():
        key = runs[0].arm if is_same_for_arm else title
        if key not in costs_of:
            costs_of[key] = _costs(runs[0])
        parameters, flops, batch = costs_of[key]
        seconds = [planning.result(run).get('train_seconds') for run in runs]
        mean = _mean(seconds)
        time = None
        if mean is not None:
            time = console.duration(mean)
        spent += [Work(flops, batch, taken) for taken in seconds if taken is not None]
        for run in runs:
            status = planning.outcome(run).status
            costs = (parameters, flops, time)
            rows.append([title, run.seed, status, *costs, run.path])
            if not planning.has_ended(run):
                left.append(Work(flops, batch))
        arm = runs[0].arm
        if arm not in planned:  # its value is not chosen yet
            planned.add(arm)
            left += [Work(flops, batch)] * len(sweep.seeds_of(arm))
    names = ['arm', 'seed', 'status', 'parameters', 'FLOPs', 'time', 'directory']
    lines = [console.table(names, rows)]
    later = number_of_runs(sweep) - len(sweep.all_runs)
    if sweep.tune is not None and later > 0:
        runs = console.count_noun(later, 'run')
        lines.append(f'{runs} with the tuned values will follow')
    lines.append(total_cost(left, spent))
    return '\n'.join(lines)


def _costs(run: PlannedRun) -> tuple[int, float, float]:
    """Returns the parameters, and the FLOPs of the training and of a step."""
    from experiments.costs.ledger import ledger

    book = ledger(run.config)
    flops = book['flops']
    parameters = book['parameters']['total']
    return parameters, float(flops['training']), float(flops['batch'])


def number_of_runs(sweep: Sweep) -> int:
    """Returns the number of runs, planned or not; with `until`, the maximum."""
    if sweep.ended:
        return len(sweep.all_runs)
    return len(sweep.trials) + _number_reported(sweep)


def _number_reported(sweep: Sweep) -> int:
    return sum(len(sweep.seeds_of(arm)) for arm in sweep.arms)


class Work(NamedTuple):
    flops: float | None  # of the training
    batch: float | None  # FLOPs of a step
    seconds: float = 0.0  # of the training

    def resembles(self, other: 'Work') -> bool:
        """Returns whether the steps have similar sizes, and so similar FLOP rates."""
        if not (self.flops and other.flops and self.batch and other.batch):
            return False
        return max(self.batch, other.batch) <= _SIMILAR * min(self.batch, other.batch)


def total_cost(left: Sequence[Work], spent: Sequence[Work]) -> str:
    """Formats the cost of the runs left: FLOPs, and hours if known."""
    total = sum(work.flops or 0.0 for work in left)
    text = f'cost: {console.cell(float(total))} FLOPs'
    hours = 0.0
    for work in left:
        similar = [x for x in spent if work.resembles(x)]
        if not similar:
            return text
        rate = fmean(x.seconds / x.flops for x in similar if x.flops)
        hours += (work.flops or 0.0) * rate / 3600
    if hours:
        text += f', about {hours:.2g} worker hours (from similar runs)'
    return text


def say_ended(sweep: Sweep, said: set[Path]) -> Sweep:
    """Prints a line for each run that has ended and is not in `said`; adds it there.

    Returns the sweep with the runs that the new results add.
    """
    new = [run for run in sweep.all_runs if run.path not in said]
    ended = list(filter(planning.has_ended, new))
    if ended and sweep.tune is not None:
        sweep = planning.plan(sweep)
    number = str(number_of_runs(sweep))
    if sweep.until is not None and not sweep.ended:
        number = f'at most {number}'
    for run in ended:
        said.add(run.path)
        print(f'[{len(said)}/{number}] {run}: {_result_line(run)}', flush=True)
    return sweep


def _result_line(run: PlannedRun) -> str:
    status, message, result = planning.outcome(run)
    if status != reading.FINISHED:
        return f'{status}: {message}'
    score = console.score(planning.score(run), run.measure.decimals)
    time = console.duration(result['train_seconds'])
    return f'{run.measure} {score}, trained in {time}'


def summary(sweep: Sweep) -> str:
    rows = []
    for arm in sweep.arms:
        runs = [run for run in sweep.runs if run.arm == arm]
        counts = collections.Counter()
        for run in runs:
            counts[planning.outcome(run).status] += 1
        ends = [f'{count} {status}' for status, count in counts.items()]
        mean = _mean(map(planning.score, runs))
        rows.append([arm, ', '.join(ends), mean])
    measure = str(sweep.measure)
    decimals = {measure: sweep.measure.decimals}
    return console.table(['arm', 'runs', measure], rows, decimals)


def _mean(values: Iterable[Any]) -> float | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return fmean(known)

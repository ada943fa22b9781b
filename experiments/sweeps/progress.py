"""What a sweep shows: what would run, what has ended, and what came out."""

import collections
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.command_line import console
from experiments.metrics.base import OF_MODELS
from experiments.runs import reading
from experiments.sweeps import planning
from experiments.sweeps.schema import PlannedRun, Sweep


def heading(sweep: Sweep) -> str:
    """The sweep's facts, a line each."""
    arms, seeds = len(sweep.arms), len(sweep.seeds)
    most = 'at most ' if sweep.until else ''
    runs = f'{most}{arms * seeds}: {arms} arms × {seeds} seeds'
    if sweep.tune is not None:
        trials = len(sweep.trials) // arms
        runs = f'{runs}, after {trials} trials of {sweep.tune.field} each'
    return console.facts(
        {
            'sweep': sweep.name,
            'question': sweep.question,
            'source': sweep.source,
            'runs': runs,
            'base': sweep.base,
            'measure': sweep.measure,
        }
    )


def plan(sweep: Sweep) -> str:
    """A row for each run: what it is, what it costs, and where; below, what is left.

    The time of a run is the mean of those of its arm that have finished.
    """
    from experiments.costs.ledger import ledger

    arms = collections.defaultdict(list)
    for run in sweep.all_runs:
        arms[run.title].append(run)
    rows = []
    left = []
    spent = []
    for title, runs in arms.items():
        book = ledger(runs[0].config)
        parameters = book['parameters']['total']
        flops = float(book['flops']['training'])
        seconds = [planning.result(run).get('train_seconds') for run in runs]
        mean = _mean(seconds)
        time = None
        if mean is not None:
            time = console.duration(mean)
        spent += [(flops, taken) for taken in seconds if taken is not None]
        for run in runs:
            status = planning.outcome(run).status
            costs = (parameters, flops, time)
            rows.append([title, run.seed, status, *costs, run.path])
            if not planning.has_ended(run):
                left.append(flops)
    names = ['arm', 'seed', 'status', 'parameters', 'FLOPs', 'time', 'directory']
    return f'{console.table(names, rows)}\n{price(sum(left), spent)}'


def price(left: float, spent: Sequence[tuple[Any, float]]) -> str:
    """What runs cost by their FLOPs; in hours, too, where others have finished.

    Args:
      left: FLOPs of what has not finished.
      spent: FLOPs, where they are known, and seconds of each run that has.
    """
    text = f'price: {console.cell(float(left))} FLOPs'
    rates = [seconds / flops for flops, seconds in spent if flops]
    if rates:
        hours = left * fmean(rates) / 3600
        text += f', {hours:.2g} hours of one worker at the rate of finished runs'
    return text


def say_ended(sweep: Sweep, said: set[Path]) -> Sweep:
    """Prints a line for each run that has ended since the last time.

    Args:
      sweep: as it was planned then.
      said: the directories of runs that had ended; these are added to it.

    Returns:
      The sweep with the runs that their results ask for.
    """
    new = [run for run in sweep.all_runs if run.path not in said]
    ended = list(filter(planning.has_ended, new))
    if ended and sweep.tune is not None:
        sweep = planning.plan(sweep)
    number = len(sweep.all_runs)
    for run in ended:
        said.add(run.path)
        print(f'[{len(said)}/{number}] {run}: {_came_out(run)}', flush=True)
    return sweep


def _came_out(run: PlannedRun) -> str:
    """`test bleu 41.20, 3:05 of training`, or how it ended otherwise."""
    status, message = planning.outcome(run)
    if status != reading.FINISHED:
        return f'{status}: {message}'
    score = console.cell(planning.score(run))
    time = console.duration(planning.result(run)['train_seconds'])
    return f'{run.measure} {score}, {time} of training'


def summary(sweep: Sweep) -> str:
    """A row for each arm: how its runs ended, and the mean of what is measured."""
    rows = []
    for arm in sweep.arms:
        runs = [run for run in sweep.runs if run.arm == arm]
        counts = collections.Counter()
        for run in runs:
            counts[planning.outcome(run).status] += 1
        ends = [f'{count} {status}' for status, count in counts.items()]
        mean = _mean(map(planning.score, runs))
        rows.append([arm, ', '.join(ends), mean])
    _, score, *_ = sweep.measure.split()
    decimals = [] if score in OF_MODELS else [sweep.measure]
    return console.table(['arm', 'runs', sweep.measure], rows, decimals)


def _mean(values: Iterable[Any]) -> float | None:
    """Of those that are known."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return fmean(known)

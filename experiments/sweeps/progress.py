"""What a sweep shows: what would run, what has ended, and what came out."""

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from experiments.command_line import console
from experiments.command_line.screen import Screen
from experiments.metrics.base import OF_MODELS
from experiments.runs import reading
from experiments.sweeps import planning, workers
from experiments.sweeps.schema import PlannedRun, Sweep


def heading(sweep: Sweep) -> str:
    """The sweep's facts, a line each."""
    return console.facts(
        {
            'sweep': sweep.name,
            'question': sweep.question,
            'source': sweep.source,
            'runs': _runs(sweep),
            'base': sweep.base,
            'measure': sweep.measure,
        }
    )


def _runs(sweep: Sweep) -> str:
    """How many there are: of how many arms and seeds, and after what."""
    arms, seeds = len(sweep.arms), len(sweep.seeds)
    most = 'at most ' if sweep.until else ''
    found = f'{most}{arms * seeds}: {arms} arms × {seeds} seeds'
    if sweep.tune is None:
        return found
    each = len(sweep.trials) // arms
    return f'{found}, after {each} trials of {sweep.tune.field} each'


def plan(sweep: Sweep) -> str:
    """A row for each run: what it is, what it costs, and where; below, what is left.

    The time of a run is the mean of those of its arm that have finished.
    """
    from experiments.costs.ledger import ledger

    groups: dict[str, list[PlannedRun]] = {}
    for run in (*sweep.trials, *sweep.runs):
        groups.setdefault(run.title, []).append(run)
    rows = []
    left: list[float] = []  # FLOPs of runs that have not ended
    spent = [0.0, 0.0]  # seconds and FLOPs of those that have finished
    for title, runs in groups.items():
        book = ledger(runs[0].config)
        steps = runs[0].config.train.steps
        flops = steps * book['batch']['tokens'] * book['flops_per_token']['total']
        times = [planning.result(run).get('train_seconds') for run in runs]
        seconds = _mean(times)
        took = None if seconds is None else console.duration(seconds)
        for run, time_taken in zip(runs, times, strict=True):
            status = planning.read_outcome(run.path).status
            parameters = book['parameters']['total']
            cost = f'{flops:.2e}'
            rows.append([title, run.seed, status, parameters, cost, took, run.path])
            if time_taken is not None:
                spent = [spent[0] + time_taken, spent[1] + flops]
            elif not planning.has_ended(run):
                left.append(flops)
    names = ['arm', 'seed', 'status', 'parameters', 'FLOPs', 'time', 'directory']
    return f'{console.table(names, rows)}\n{_price(left, *spent)}'


def _price(left: Sequence[float], seconds: float, flops: float) -> str:
    """What the runs that are left cost, if they are as fast as those before."""
    price = f'price: {sum(left):.2e} FLOPs in {len(left)} runs'
    if not left or not flops:
        return price
    hours = sum(left) / flops * seconds / 3600
    return f'{price}, {hours:.2g} hours of one worker at the rate of finished runs'


def summary(sweep: Sweep) -> str:
    """A row for each arm: how its runs ended, and the mean of what is measured."""
    rows = []
    for arm in sweep.arms:
        runs = [run for run in sweep.runs if run.arm == arm]
        counts = Counter(planning.read_outcome(run.path).status for run in runs)
        ends = ', '.join(f'{count} {status}' for status, count in counts.items())
        rows.append([arm, ends, _mean(list(map(planning.score, runs)))])
    is_of_translations = sweep.measure.split()[1] not in OF_MODELS
    decimals = [sweep.measure] if is_of_translations else []
    return console.table(['arm', 'runs', sweep.measure], rows, decimals)


class Progress:
    """Looks at the runs' directories, and shows what has changed.

    Args:
      sweep: whose runs they are.
      screen: where.

    Attributes:
      sweep: with the runs that results have asked for.
    """

    def __init__(self, sweep: Sweep, screen: Screen):
        self.sweep = sweep
        self._screen = screen
        self._began = time.time()
        self._ended: set[Path] = set()
        screen.begin('sweep', quiet=True)
        if self._newly_ended():
            before = f'{len(self._ended)} of {len(self._planned())}'
            screen.say(f'{before} runs have ended before')

    def update(self) -> None:
        """Says which runs have ended since the last time."""
        number = len(self._ended)
        newly = self._newly_ended()
        if newly and not self.sweep.ended:
            self.sweep = planning.plan(self.sweep)
        runs = len(self._planned())
        for run in newly:
            number += 1
            self._screen.say(f'[{number}/{runs}] {self._line(run)}')
        self._screen.count(number, runs, 'runs')

    def _planned(self) -> list[PlannedRun]:
        return [*self.sweep.trials, *self.sweep.runs]

    def _newly_ended(self) -> list[PlannedRun]:
        left = [run for run in self._planned() if run.path not in self._ended]
        ended = [run for run in left if not workers.is_open(run.path, self._began)]
        self._ended.update(run.path for run in ended)
        return ended

    def _line(self, run: PlannedRun) -> str:
        """`heads=4, seed 1: test bleu 41.20, 3:05 of training`."""
        status, message = planning.read_outcome(run.path)
        if status != reading.FINISHED:
            return f'{run}: {status}: {message}'
        score = console.cell(planning.score(run))
        took = console.duration(planning.result(run)['train_seconds'])
        return f'{run}: {run.measure} {score}, {took} of training'


def _mean(values: Sequence[float | None]) -> float | None:
    """Of those that are known."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None

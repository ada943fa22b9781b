"""What a sweep shows: what would run, what has ended, and what came out."""

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.command_line import console
from experiments.command_line.screen import Screen
from experiments.metrics.base import OF_MODELS
from experiments.runs import reading
from experiments.sweeps import workers
from experiments.sweeps.schema import PlannedRun, Sweep


def heading(sweep: Sweep) -> str:
    """The sweep's facts, a line each."""
    return console.facts(
        {
            'sweep': sweep.name,
            'question': sweep.question,
            'source': sweep.source,
            'runs': f'{len(sweep.runs)}: {len(sweep.arms)} arms × '
            f'{len(sweep.seeds)} seeds',
            'base': sweep.base,
            'measure': sweep.measure,
        }
    )


def plan(sweep: Sweep) -> str:
    """A row for each run: what it is, what it costs, and where.

    Its time is the mean of those runs of its arm that have finished.
    """
    from experiments.costs.ledger import ledger

    rows = []
    for arm in sweep.arms:
        runs = [run for run in sweep.runs if run.arm == arm]
        book = ledger(runs[0].config)
        tokens = book['batch']['tokens'] * runs[0].config.train.steps
        flops = f'{tokens * book["flops_per_token"]["total"]:.2e}'
        seconds = _mean([_result(run).get('train_seconds') for run in runs])
        took = None if seconds is None else console.duration(seconds)
        for run in runs:
            status = workers.read_outcome(run.path).status
            parameters = book['parameters']['total']
            rows.append([arm, run.seed, status, parameters, flops, took, run.path])
    names = ['arm', 'seed', 'status', 'parameters', 'FLOPs', 'time', 'directory']
    return console.table(names, rows)


def scores(sweep: Sweep) -> dict[str, dict[int, float]]:
    """What decides, of the runs that have finished, by arm and seed."""
    found: dict[str, dict[int, float]] = {}
    for run in sweep.runs:
        score = _score(run, sweep.measure)
        if score is not None:
            found.setdefault(run.arm, {})[run.seed] = score
    return found


def summary(sweep: Sweep) -> str:
    """A row for each arm: how its runs ended, and the mean of what is measured."""
    rows = []
    for arm in sweep.arms:
        runs = [run for run in sweep.runs if run.arm == arm]
        counts = Counter(workers.read_outcome(run.path).status for run in runs)
        ends = ', '.join(f'{count} {status}' for status, count in counts.items())
        rows.append([arm, ends, _mean([_score(run, sweep.measure) for run in runs])])
    is_of_translations = sweep.measure.split()[1] not in OF_MODELS
    decimals = [sweep.measure] if is_of_translations else []
    return console.table(['arm', 'runs', sweep.measure], rows, decimals)


class Progress:
    """Looks at the runs' directories, and shows what has changed.

    Args:
      sweep: whose runs they are.
      screen: where.
    """

    def __init__(self, sweep: Sweep, screen: Screen):
        self._sweep = sweep
        self._screen = screen
        self._began = time.time()
        self._ended: set[Path] = set()
        screen.begin('sweep', quiet=True)
        if self._newly_ended():
            before = f'{len(self._ended)} of {len(sweep.runs)}'
            screen.say(f'{before} runs have ended before')

    def update(self) -> None:
        """Says which runs have ended since the last time."""
        runs = self._sweep.runs
        number = len(self._ended)
        for run in self._newly_ended():
            number += 1
            self._screen.say(f'[{number}/{len(runs)}] {self._line(run)}')
        self._screen.count(number, len(runs), 'runs')

    def _newly_ended(self) -> list[PlannedRun]:
        left = [run for run in self._sweep.runs if run.path not in self._ended]
        ended = [run for run in left if not workers.is_open(run.path, self._began)]
        self._ended.update(run.path for run in ended)
        return ended

    def _line(self, run: PlannedRun) -> str:
        """`heads=4, seed 1: test bleu 41.20, 3:05 of training`."""
        status, message = workers.read_outcome(run.path)
        found = f'{status}: {message}'
        if status == reading.FINISHED:
            score = console.cell(_score(run, self._sweep.measure))
            took = console.duration(_result(run)['train_seconds'])
            found = f'{self._sweep.measure} {score}, {took} of training'
        return f'{run.arm}, seed {run.seed}: {found}'


def _result(run: PlannedRun) -> dict[str, Any]:
    """The result of a run; empty where it has none that can be read."""
    if workers.read_outcome(run.path).status != reading.FINISHED:
        return {}
    return reading.read_result(run.path)


def _score(run: PlannedRun, measure: str) -> float | None:
    """The score of a finished run that a sweep's measure names, `'test bleu'`."""
    name, kind = measure.split()
    return _result(run).get('evaluations', {}).get(name, {}).get(kind)


def _mean(values: Sequence[float | None]) -> float | None:
    """Of those that are known."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None

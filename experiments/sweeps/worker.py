"""A worker of a sweep: one process, which makes the runs that nobody else makes."""

import contextlib
import dataclasses
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from experiments.command_line.screen import Screen
from experiments.command_line.stopping import Stop, Stopped
from experiments.config.schema import ExperimentConfig
from experiments.errors import UserError, line
from experiments.runs import lock
from experiments.sweeps import outcome
from experiments.sweeps.schema import Cell

MOST_TOGETHER = 8  # seeds that one program trains
PREEMPTED = getattr(signal, 'SIGUSR2', None)  # as submitit says it; not on Windows


@dataclasses.dataclass
class Worker:
    """Walks over a sweep's runs and makes each that is open and locked by nobody.

    So workers need no scheduler: wherever they run, the locks of the directories keep
    them apart. Each begins at a place of its own in the list. What runs share is made
    once: imports, text, compiled programs.

    Attributes:
      cells: the runs.
      index: the worker's number, from 0.
      workers: how many there are.
      began: when the sweep did, in seconds since 1970.
      folder: the working directory, in which `runs/` is.
      shares_cores: whether the workers divide this machine's cores among them.
    """

    cells: list[Cell]
    index: int
    workers: int
    began: float
    folder: Path
    shares_cores: bool = False

    def __call__(self) -> dict[str, str]:
        """Works until nothing is left, in a process of its own.

        Returns:
          The errors of runs that could not be begun, by their directories.
        """
        os.chdir(self.folder)
        if self.shares_cores:
            _use_share_of_cores(self.index, self.workers)
        requeue = signal.getsignal(PREEMPTED) if PREEMPTED else None
        others = [PREEMPTED] if PREEMPTED and callable(requeue) else []
        stop = Stop()
        with stop.listening(*others):
            try:
                return self.work(stop)
            except Stopped as stopped:
                print(f'stopped {stopped}', flush=True)
            if callable(requeue) and stop.signal == PREEMPTED:
                _requeue(requeue)
            stop.leave()

    def checkpoint(self) -> Any:
        """What goes on in this worker's place when its job was preempted."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    def work(self, stop: Stop) -> dict[str, str]:
        """Makes the open runs, one after another; what they print is on stdout.

        Returns:
          The errors of runs that could not be begun, by their directories.

        Raises:
          Stopped: a stop was asked for.
        """
        from experiments.training.setup import Memo

        memo = Memo()
        errors = {}
        for cell in self._from_own_place():
            stop.check()
            team, error = self._make(cell, stop, memo)
            for member in team:
                if error and outcome.of(member.path).status == outcome.UNFINISHED:
                    errors[str(member.path)] = error
        return errors

    def _make(self, cell: Cell, stop: Stop, memo: Any) -> tuple[list[Cell], str]:
        """Makes a run that is open, with others of its arm → these runs, their error.

        Where another worker begins one of them at the same moment, the others are made
        without it.
        """
        for _ in range(MOST_TOGETHER):
            if not self._is_mine(cell):
                break
            team = self._team(cell)
            for member in team:
                seed = f'{member.arm}, seed {member.seed}'
                print(f'{seed}: {member.path}', flush=True)
            try:
                return team, _run(team, stop, memo)
            except lock.InUse:
                continue
        return [], ''

    def _team(self, cell: Cell) -> list[Cell]:
        """The open runs of the arm of one, if one program is to train them together."""
        if not _trains_seeds_together(cell.config):
            return [cell]
        others = [other for other in self.cells if other.arm == cell.arm]
        team = [other for other in others if other == cell or self._is_mine(other)]
        first = team.index(cell)
        return (team[first:] + team[:first])[:MOST_TOGETHER]

    def _is_mine(self, cell: Cell) -> bool:
        return outcome.is_open(cell.path, self.began) and lock.is_free(cell.path)

    def _from_own_place(self) -> Iterator[Cell]:
        start = len(self.cells) * self.index // self.workers
        yield from self.cells[start:]
        yield from self.cells[:start]


def _trains_seeds_together(config: ExperimentConfig) -> bool:
    """Whether seeds are trained faster by one program, and can be.

    On a CPU they are not: the steps of a single run keep its cores busy.
    """
    import jax

    one_shape = config.batch.packed
    same_steps = config.train.epochs == 0
    return one_shape and same_steps and jax.default_backend() != 'cpu'


def _run(team: Sequence[Cell], stop: Stop, memo: Any) -> str:
    """Makes runs of one arm; returns their error, which stops no other run.

    Raises:
      InUse: another process has begun one of them.
    """
    from experiments.training import whole_run

    try:
        with contextlib.closing(Screen()) as screen:
            runs = [whole_run.Run(cell.config, cell.path) for cell in team]
            whole_run.run(runs, team[0].overrides, screen, stop, memo=memo)
    except (Stopped, lock.InUse):
        raise
    except UserError as error:
        print('error:', line(error), flush=True)
        return str(error)
    except Exception as error:
        traceback.print_exc(file=sys.stdout)
        return f'{type(error).__name__}: {error}'
    return ''


def _use_share_of_cores(index: int, workers: int) -> None:
    """Keeps this process to its share of the cores, before anything starts threads."""
    if not hasattr(os, 'sched_setaffinity'):
        return
    cores = sorted(os.sched_getaffinity(0))
    if workers <= len(cores):
        first = len(cores) * index // workers
        last = len(cores) * (index + 1) // workers
        os.sched_setaffinity(0, cores[first:last])


def _requeue(requeue: Callable[..., Any]) -> NoReturn:
    """Has submitit queue this job again, and ends the process at once.

    An orderly exit would wait for a thread that compiles.
    """
    status: Any = 0
    try:
        requeue(PREEMPTED, None)
    except SystemExit as leaving:
        status = leaving.code
    sys.stdout.flush()
    os._exit(status & 255 if isinstance(status, int) else 1)

"""How far a sweep is, as its runs' directories tell, and the time that is left."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean

from experiments.command_line import console
from experiments.command_line.screen import Screen
from experiments.sweeps import outcome
from experiments.sweeps.schema import Cell

_EVERY = 1.0  # seconds between two looks at the directories


class Progress:
    """Looks at the runs' directories, and shows what has changed.

    The time left is that of the steps left at the pace since the sweep began. A step of
    an arm of which a run has finished weighs as much as it took there; a step of the
    other arms weighs the mean.

    Args:
      cells: the sweep's runs.
      measure: the set and the score that are shown of a finished run.
      screen: where.
      began: when the sweep did, in seconds since 1970. What failed before is open.
      clock: gives seconds.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        measure: str,
        screen: Screen,
        began: float,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._cells = cells
        self._measure = measure
        self._screen = screen
        self._began = began
        self._clock = clock
        self._start = clock()
        self._ended: set[Path] = set()
        self._new()
        self._first_steps = self._steps()
        screen.begin('sweep', quiet=True)
        if self._ended:
            screen.say(f'{len(self._ended)} of {len(cells)} runs have ended before')

    def update(self) -> None:
        """Says which runs have ended since the last time, and shows the time left."""
        new = self._new()
        steps = self._steps()
        left = self._time_left(steps)
        runs = len(self._cells)
        before = len(self._ended) - len(new)
        for number, cell in enumerate(new, before + 1):
            self._screen.say(f'[{number}/{runs}] {self._line(cell)}  {left} left')
        unit = f'steps; {len(self._ended)}/{runs} runs; {left} left'
        total = sum(cell.config.train.steps for cell in self._cells)
        self._screen.count(sum(steps), total, unit)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Updates from time to time, in a thread, and once more at the end."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(_EVERY):
                self.update()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        self.update()

    def wait(self, seconds: float = _EVERY) -> None:
        """Updates after some time, for who waits for other processes."""
        time.sleep(seconds)
        self.update()

    def _new(self) -> list[Cell]:
        """The runs that have ended since the last look."""
        new = []
        for cell in self._cells:
            if cell.path in self._ended:
                continue
            if not outcome.is_open(cell.path, self._began):
                self._ended.add(cell.path)
                new.append(cell)
        return new

    def _steps(self) -> list[int]:
        """The steps of each run that are done; all, where it has ended."""
        steps = []
        for cell in self._cells:
            if cell.path in self._ended:
                steps.append(cell.config.train.steps)
            else:
                steps.append(outcome.steps_done(cell.path))
        return steps

    def _time_left(self, steps: Sequence[int]) -> str:
        weights = _weights(self._cells)
        done = left = 0.0
        for cell, now, first in zip(self._cells, steps, self._first_steps, strict=True):
            done += weights[cell.arm] * (now - first)
            left += weights[cell.arm] * (cell.config.train.steps - now)
        if done <= 0:
            return '?'
        return console.duration((self._clock() - self._start) * left / done)

    def _line(self, cell: Cell) -> str:
        """`heads=4, seed 1: test bleu 41.20`."""
        status, message = outcome.of(cell.path)
        score = outcome.score(cell, self._measure)
        found = f'{self._measure} {console.cell(score)}'
        if status != outcome.FINISHED:
            found = f'{status}: {message}'
        return f'{cell.arm}, seed {cell.seed}: {found}'


def _weights(cells: Sequence[Cell]) -> dict[str, float]:
    """What a step of each arm weighs: its seconds, as far as they are known."""
    seconds: dict[str, list[float]] = {cell.arm: [] for cell in cells}
    for cell in cells:
        known = outcome.seconds_a_step(cell.path)
        if known is not None:
            seconds[cell.arm].append(known)
    means = {arm: fmean(values) for arm, values in seconds.items() if values}
    mean = fmean(means.values()) if means else 1.0
    return {arm: means.get(arm, mean) for arm in seconds}

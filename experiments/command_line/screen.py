"""What a run shows while it works: its phase and its progress.

On a terminal it is one line below all others, redrawn several times a second; elsewhere
it is a few lines, such as a log file can keep.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, RenderableColumn, TextColumn
from rich.spinner import Spinner

from experiments.command_line.console import cell, duration


class Screen:
    """Shows the phase and the progress of a run.

    Args:
      out: a stream; standard output by default.
      clock: gives seconds.

    Attributes:
      phase: what the run is doing: 'compiling'.
    """

    def __init__(
        self, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ):
        self.phase = 'starting'
        self._out = sys.stdout if out is None else out
        self._clock = clock
        self._shown_metrics = ''
        self.train(steps=0, first=0)
        self._is_live = self._out.isatty()
        self._progress = Progress(
            RenderableColumn(Spinner('line')),  # it turns even when all is counted
            TextColumn('{task.description}', markup=False),
            BarColumn(bar_width=20),
            TextColumn('{task.fields[details]}', markup=False),
            console=Console(file=self._out, force_terminal=True),
            transient=True,
            refresh_per_second=5,
            disable=not self._is_live,
        )
        self._task = self._progress.add_task(self.phase, total=1, details='')
        self._progress.start()

    def begin(self, phase: str, quiet: bool = False) -> None:
        """Begins a phase, unless the run is in it already.

        Args:
          phase: its name: 'tokenising'.
          quiet: only a terminal shows it.
        """
        if phase == self.phase:
            return
        self.phase = phase
        self._progress.remove_task(self._task)
        self._task = self._progress.add_task(phase, total=1, details='')
        if not self._is_live and not quiet:
            self.say(f'{phase} …')

    def count(self, done: int, total: int | None, unit: str) -> None:
        """Shows how much of the phase is done, on a terminal only.

        Args:
          total: of which `done` is a part; None where it is not known.
          unit: what is counted: 'pairs'.
        """
        details = f'{done:,}/{total:,} {unit}' if total else f'{done:,} {unit}'
        self._progress.update(
            self._task,
            completed=done if total else 0,
            total=total or 1,
            details=details,
        )

    def train(self, steps: int, first: int) -> None:
        """Begins training after step `first`, to end at step `steps`.

        The time left is estimated from here on.
        """
        self._last_step = steps
        self._first_step = first
        self._began = self._clock()

    def step(self, step: int) -> None:
        """Shows that a step has begun, on a terminal only."""
        self.phase = 'training'
        self._progress.update(
            self._task,
            description=f'training: step {step:,}/{self._last_step:,}',
            completed=step,
            total=self._last_step,
            details=self._shown_metrics,
        )

    def metrics(self, step: int, **values: Any) -> None:
        """Shows training's metrics at a step (`loss=3.21`), and the time left."""
        shown = [f'{name.replace("_", " ")} {cell(x)}' for name, x in values.items()]
        self._shown_metrics = f'{"  ".join(shown)}  {self._time_left(step)} left'
        if self._is_live:
            self._progress.update(self._task, details=self._shown_metrics)
        else:
            self.say(f'step {step:,}/{self._last_step:,}  {self._shown_metrics}')

    def say(self, text: str) -> None:
        """Prints a text that stays, above the line that changes.

        A run goes on where nobody reads it any more, as when its terminal is gone.
        """
        try:
            if self._is_live:
                self._progress.console.print(
                    text, markup=False, highlight=False, soft_wrap=True
                )
            else:
                print(text, file=self._out, flush=True)
        except OSError:
            # What the stream has buffered goes there too, also when Python ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._out.fileno())

    def close(self) -> None:
        """Removes the line that changes; a second call does nothing."""
        if self._is_live:
            self._progress.stop()

    def _time_left(self, step: int) -> str:
        done = step - self._first_step
        if done <= 0:
            return '?'
        seconds_a_step = (self._clock() - self._began) / done
        return duration(seconds_a_step * (self._last_step - step))

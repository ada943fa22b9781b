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


class Output:
    """A stream that drops what is written once nobody reads it any more.

    A run does not end because `| head -2` has closed the pipe, or its terminal is gone.
    """

    def __init__(self, stream: TextIO):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            self._silence()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._silence()

    def _silence(self) -> None:
        # What the stream has buffered goes there too, even when the process ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)


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
        self._live: Progress | None = None
        if self._out.isatty() and os.environ.get('TERM') not in ('dumb', 'unknown'):
            self._live = _live(self._out)
            self._task = self._live.add_task(self.phase, total=1, details='')
            self._live.start()

    def begin(self, phase: str, quiet: bool = False) -> None:
        """Begins a phase, unless the run is in it already.

        Args:
          phase: its name: 'tokenising'.
          quiet: only a terminal shows it.
        """
        if phase == self.phase:
            return
        self.phase = phase
        if self._live:
            self._live.remove_task(self._task)
            self._task = self._live.add_task(phase, total=1, details='')
        elif not quiet:
            self.say(f'{phase} …')

    def count(self, done: int, total: int | None, unit: str) -> None:
        """Shows how much of the phase is done, on a terminal only.

        Args:
          total: of which `done` is a part; None where it is not known.
          unit: what is counted: 'pairs'.
        """
        if not self._live:
            return
        if total:
            details = f'{done:,}/{total:,} {unit}'
            self._live.update(self._task, completed=done, total=total, details=details)
        else:
            details = f'{done:,} {unit}'
            self._live.update(self._task, completed=0, total=1, details=details)

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
        if self._live:
            self._live.update(
                self._task,
                description=f'training: step {step:,}/{self._last_step:,}',
                completed=step,
                total=self._last_step,
                details=self._shown_metrics,
            )

    def metrics(self, step: int, **values: Any) -> None:
        """Shows training's metrics at a step (`loss=3.21`), and the time left."""
        shown = []
        for name, value in values.items():
            shown.append(f'{name.replace("_", " ")} {cell(value)}')
        self._shown_metrics = f'{"  ".join(shown)}  {self._time_left(step)} left'
        if self._live:
            self._live.update(self._task, details=self._shown_metrics)
        else:
            self.say(f'step {step:,}/{self._last_step:,}  {self._shown_metrics}')

    def say(self, text: str) -> None:
        """Prints a text that stays, above the line that changes."""
        if self._live:
            self._live.console.print(
                text, markup=False, highlight=False, soft_wrap=True
            )
        else:
            print(text, file=self._out, flush=True)

    def close(self) -> None:
        """Removes the line that changes; a second call does nothing."""
        if self._live:
            self._live.stop()
            self._live = None

    def _time_left(self, step: int) -> str:
        done = step - self._first_step
        if done <= 0:
            return '?'
        seconds_a_step = (self._clock() - self._began) / done
        return duration(seconds_a_step * (self._last_step - step))


def _live(out: TextIO) -> Progress:
    columns = (
        RenderableColumn(Spinner('line')),  # it turns even when all is counted
        TextColumn('{task.description}', markup=False),
        BarColumn(bar_width=20),
        TextColumn('{task.fields[details]}', markup=False),
    )
    console = Console(file=out, force_terminal=True)
    return Progress(*columns, console=console, transient=True, refresh_per_second=5)

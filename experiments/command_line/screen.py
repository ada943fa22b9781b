"""What a run shows while it works: its phase and its progress.

On a terminal one line below all others, drawn anew several times a second; else few lines,
which a file keeps.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, RenderableColumn, TextColumn
from rich.spinner import Spinner

from experiments.command_line.console import cell


class Output:
    """A stream that nobody may be reading any more: then it goes on, and writes nothing.

    A run is not over because `| head -2` has seen enough, or because its terminal is gone.
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
        # What the stream still holds goes there too, also when the process ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)


class Screen:
    """Shows where a run stands.

    Args:
      out: standard output without it.
      clock: seconds.

    Attributes:
      phase: what the run is doing: 'compiling'.
    """

    def __init__(
        self, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ):
        self.phase = 'starting'
        self._out, self._clock = out or sys.stdout, clock
        self._figures = ''
        self.train(steps=0, first=0)
        self._live: Progress | None = None
        if self._out.isatty() and os.environ.get('TERM') not in ('dumb', 'unknown'):
            self._live = _live(self._out)
            self._task = self._live.add_task(self.phase, total=1, figures='')
            self._live.start()

    def begin(self, phase: str, quiet: bool = False) -> None:
        """A phase begins, unless it is the one that the run is in.

        Args:
          phase: its name: 'tokenising'.
          quiet: only a terminal shows it.
        """
        if phase == self.phase:
            return
        self.phase = phase
        if self._live:
            self._live.remove_task(self._task)
            self._task = self._live.add_task(phase, total=1, figures='')
        elif not quiet:
            self.say(f'{phase} …')

    def count(self, done: int, total: int | None, unit: str) -> None:
        """How much of the phase is done; only a terminal shows it."""
        if self._live:
            figures = f'{done:,}/{total:,} {unit}' if total else f'{done:,} {unit}'
            self._live.update(
                self._task,
                completed=done if total else 0,
                total=total or 1,
                figures=figures,
            )

    def train(self, steps: int, first: int) -> None:
        """Training begins, after the `first` step of so many; time left counts from here."""
        self._last_step, self._first_step, self._began = steps, first, self._clock()

    def step(self, step: int) -> None:
        """A step was begun; only a terminal shows each."""
        self.phase = 'training'
        if self._live:
            self._live.update(
                self._task,
                description=f'training: step {step:,}/{self._last_step:,}',
                completed=step,
                total=self._last_step,
                figures=self._figures,
            )

    def metrics(self, step: int, **values: Any) -> None:
        """Training's figures at a step (`loss=3.21`), and the time left."""
        pairs = (f'{name.replace("_", " ")} {cell(v)}' for name, v in values.items())
        self._figures = f'{"  ".join(pairs)}  {self._time_left(step)} left'
        if self._live:
            self._live.update(self._task, figures=self._figures)
        else:
            self.say(f'step {step:,}/{self._last_step:,}  {self._figures}')

    def say(self, text: str) -> None:
        """Prints a text, which stays; above what changes."""
        if self._live:
            self._live.console.print(
                text, markup=False, highlight=False, soft_wrap=True
            )
        else:
            print(text, file=self._out, flush=True)

    def close(self) -> None:
        """Takes away what changes; what was said stays. Again, it does nothing."""
        if self._live:
            self._live.stop()
            self._live = None

    def _time_left(self, step: int) -> str:
        done = step - self._first_step
        if done <= 0:
            return '?'
        seconds = (self._clock() - self._began) / done * (self._last_step - step)
        minutes, seconds = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        if hours:
            return f'{hours}:{minutes:02}:{seconds:02}'
        return f'{minutes}:{seconds:02}'


def _live(out: TextIO) -> Progress:
    columns = (
        RenderableColumn(Spinner('line')),  # it turns also when all is counted
        TextColumn('{task.description}', markup=False),
        BarColumn(bar_width=20),
        TextColumn('{task.fields[figures]}', markup=False),
    )
    console = Console(file=out, force_terminal=True)
    return Progress(*columns, console=console, transient=True, refresh_per_second=5)

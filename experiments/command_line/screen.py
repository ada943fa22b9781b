"""What a command shows while it works: its phase and its progress.

On a terminal it is one line below all others, redrawn several times a second; elsewhere
a run says a few lines, such as a log file can keep, and other commands nothing.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    RenderableColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.spinner import Spinner

from experiments.command_line import stopping
from experiments.command_line.console import cell, duration
from experiments.errors import UserError

_LONG = 600.0  # seconds by which the time left is estimated


@contextlib.contextmanager
def on_stderr(phase: str) -> Iterator['Screen']:
    """The screen of a command whose standard output is its result, in a first phase.

    Only a terminal shows it. Its line is gone after the block, and where a signal ends
    the command; a result is to be printed after it.
    """
    with contextlib.closing(Screen(sys.stderr, is_log=False)) as screen:
        stopping.at_end(screen.close)
        screen.begin(phase)
        with errors_noted(screen):
            yield screen


@contextlib.contextmanager
def errors_noted(screen: 'Screen', of: str = '') -> Iterator[None]:
    """An error's traceback says in which phase it was raised, such as of a user's part.

    Args:
      of: what is said beside the phase.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        error.add_note(f'while {screen.phase}{of}')
        raise


class Screen:
    """Shows the phase and the progress of a command.

    Args:
      out: a stream; standard output by default.
      clock: gives seconds.
      is_log: whether a stream that is no terminal gets the phases as lines.

    Attributes:
      phase: what the command is doing: 'compiling'.
    """

    def __init__(
        self,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        is_log: bool = True,
    ):
        self.phase = 'starting'
        self._out = sys.stdout if out is None else out
        self._is_log = is_log
        self._shown_metrics = ''
        # A terminal that cannot move its cursor, such as a notebook's, gets lines.
        self._is_live = self._out.isatty() and os.environ.get('TERM') != 'dumb'
        self._progress = Progress(
            RenderableColumn(Spinner('line')),  # it turns even when all is counted
            TextColumn('{task.description}', markup=False),
            BarColumn(bar_width=20),
            TextColumn('{task.fields[details]}', markup=False),
            TimeRemainingColumn(),
            console=Console(file=self._out, force_terminal=True),
            transient=True,
            refresh_per_second=5,
            get_time=clock,
            speed_estimate_period=_LONG,
            # What is printed there goes above the line; a result may go elsewhere.
            redirect_stdout=self._out is sys.stdout,
            disable=not self._is_live,
        )
        self._task = self._progress.add_task(self.phase, total=None, details='')
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
        self._task = self._progress.add_task(phase, total=None, details='')
        if self._is_log and not self._is_live and not quiet:
            self.say(f'{phase} …')

    def count(self, done: int, total: int | None, unit: str) -> None:
        """Shows how much of the phase is done, and the time left, on a terminal only.

        Args:
          total: of which `done` is a part; None where it is not known.
          unit: what is counted: 'pairs'.
        """
        details = f'{done:,}/{total:,} {unit}' if total else f'{done:,} {unit}'
        if not done:  # the time left is that of this unit, whatever was done before
            self._progress.reset(self._task)
        self._progress.update(self._task, completed=done, total=total, details=details)

    def step(self, step: int, last: int) -> None:
        """Shows that a step of training has begun, on a terminal only."""
        self.phase = 'training'
        self._progress.update(
            self._task,
            description=f'training: step {step:,}/{last:,}',
            completed=step,
            total=last,
            details=self._shown_metrics,
        )

    def metrics(self, step: int, **values: Any) -> None:
        """Shows training's metrics at a step (`loss=3.21`), and the time left."""
        shown = []
        for name, value in values.items():
            words = name.replace('_', ' ')
            shown.append(f'{words} {cell(value)}')
        self._shown_metrics = '  '.join(shown)
        task = self._progress.tasks[0]
        if self._is_live:
            self._progress.update(self._task, details=self._shown_metrics)
        else:
            seconds = task.time_remaining
            left = '?' if seconds is None else duration(seconds)
            at = f'step {step:,}/{task.total:,}'
            self.say(f'{at}  {self._shown_metrics}  {left} left')

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

"""The phase and progress of a running command.

A terminal shows one line below all others, redrawn several times a second. In other
outputs a run prints a few lines that suit a log file; other commands print nothing.
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
from experiments.command_line.console import cell, duration, exact
from experiments.errors import UserError, printable

_LONG = 600.0  # seconds of progress that estimate the time left


@contextlib.contextmanager
def on_stderr(phase: str) -> Iterator['Screen']:
    """Yields the screen of a command whose result is its standard output.

    Only a terminal shows it. Its line disappears after the block, and when a signal
    ends the command. Print a result after the block.
    """
    with contextlib.closing(Screen(sys.stderr, is_log=False)) as screen:
        stopping.set_exit_message(screen.close)
        screen.begin(phase)
        with note_errors(screen):
            yield screen


@contextlib.contextmanager
def note_errors(screen: 'Screen', of: str = '') -> Iterator[None]:
    """Adds the phase to an error's traceback."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        error.add_note(f'while {screen.phase}{of}')
        raise


class Screen:
    """A display of the phase and the progress of a command.

    Args:
      out: Defaults to standard output.
      clock: Returns seconds.
      is_log: Whether a stream that isn't a terminal gets the phases as lines.
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
        # A terminal without cursor movement, such as a notebook's, gets lines.
        self._is_live = self._out.isatty() and os.environ.get('TERM') != 'dumb'
        self._progress = Progress(
            RenderableColumn(Spinner('line')),  # turns even when the count is complete
            TextColumn('{task.description}', markup=False),
            BarColumn(bar_width=20),
            TextColumn('{task.fields[details]}', markup=False),
            TimeRemainingColumn(),
            console=Console(file=exact(self._out), force_terminal=True),
            transient=True,
            refresh_per_second=5,
            get_time=clock,
            speed_estimate_period=_LONG,
            # Prints appear above the line. A result may go to another stream.
            redirect_stdout=self._out is sys.stdout,
            disable=not self._is_live,
        )
        self._task = self._progress.add_task(self.phase, total=None, details='')
        self._progress.start()

    def begin(self, phase: str, quiet: bool = False) -> None:
        """Begins a phase, unless it is the current one. `quiet`: on terminals only."""
        if phase == self.phase:
            return
        self.phase = phase
        self._progress.remove_task(self._task)
        shown = printable(phase)
        self._task = self._progress.add_task(shown, total=None, details='')
        if self._is_log and not self._is_live and not quiet:
            self.say(f'{phase} …')

    def count(self, done: int, total: int | None, unit: str) -> None:
        """Shows progress and the time left, on a terminal only."""
        number = f'{done:,}/{total:,}' if total else f'{done:,}'
        details = printable(f'{number} {unit}')
        if not done:  # estimate the time left from this unit alone
            self._progress.reset(self._task)
        self._progress.update(self._task, completed=done, total=total, details=details)

    def step(self, step: int, last: int) -> None:
        """Shows the current step of training, on a terminal only."""
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
        self._shown_metrics = printable('  '.join(shown))
        task = self._progress.tasks[0]
        if self._is_live:
            self._progress.update(self._task, details=self._shown_metrics)
        else:
            seconds = task.time_remaining
            left = '?' if seconds is None else duration(seconds)
            at = f'step {step:,}/{task.total:,}'
            self.say(f'{at}  {self._shown_metrics}  {left} left')

    def say(self, text: str) -> None:
        """Prints a permanent text above the progress line.

        If the output is closed, the run continues without it.
        """
        text = printable(text)
        try:
            if self._is_live:
                self._progress.console.print(
                    text, markup=False, highlight=False, soft_wrap=True
                )
            else:
                print(text, file=self._out, flush=True)
        except OSError:
            # The buffered output goes there too, also at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._out.fileno())

    def close(self) -> None:
        """Removes the progress line; a second call does nothing."""
        if self._is_live:
            self._progress.stop()

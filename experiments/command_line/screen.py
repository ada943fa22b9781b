"""The phase and progress of a running command.

A terminal shows one line below all others, redrawn several times a second. In other
outputs a run prints a few lines that suit a log file; other commands print nothing.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from experiments.command_line.console import cell, duration, exact
from experiments.errors import printable

_ESTIMATE_SECONDS = 600.0  # estimate the time left from this many seconds


@contextlib.contextmanager
def on_stderr(phase: str) -> Iterator['Screen']:
    """Yields the screen of a command whose result is its standard output.

    Only a terminal shows it. Its line disappears after the block. Print a result after
    the block.
    """
    with contextlib.closing(Screen(sys.stderr, is_log=False)) as screen:
        screen.begin(phase)
        yield screen


class Screen:
    """A display of the phase and the progress of a command.

    Args:
      out: Defaults to standard output.
      is_log: Whether a stream that isn't a terminal gets the phases as lines.
    """

    def __init__(self, out: TextIO | None = None, is_log: bool = True):
        self._phase = 'starting'
        self._out = sys.stdout if out is None else out
        self._is_log = is_log
        self._shown_metrics = ''
        # A terminal without cursor movement, such as a notebook's, gets lines.
        self._is_live = self._out.isatty() and os.environ.get('TERM') != 'dumb'
        console = Console(file=exact(self._out), force_terminal=True)
        self._progress = Progress(
            TextColumn('{task.description}', markup=False),
            BarColumn(bar_width=20),
            TextColumn('{task.fields[details]}', markup=False),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            refresh_per_second=5,
            speed_estimate_period=_ESTIMATE_SECONDS,
            # Prints appear above the line. A result may go to another stream.
            redirect_stdout=self._out is sys.stdout,
            disable=not self._is_live,
        )
        self._task = self._progress.add_task(self._phase, total=None, details='')
        self._progress.start()
        if self._is_live:
            console.show_cursor(True)  # a signal may end the process at any moment

    def begin(self, phase: str, quiet: bool = False) -> None:
        """Begins a phase, unless it is the current one. `quiet`: on terminals only."""
        if phase == self._phase:
            return
        self._phase = phase
        self._progress.remove_task(self._task)
        shown = printable(phase)
        self._task = self._progress.add_task(shown, total=None, details='')
        if self._is_log and not self._is_live and not quiet:
            self.say(f'{phase} …')

    def count(self, done: int, total: int | None, unit: str, metrics: str = '') -> None:
        """Shows progress and the time left, on a terminal only."""
        number = f'{done:,}/{total:,}' if total else f'{done:,}'
        details = printable(f'{number} {unit}{metrics}')
        if not done:  # estimate the time left from this unit alone
            self._progress.reset(self._task)
        self._progress.update(self._task, completed=done, total=total, details=details)

    def step(self, step: int, last: int) -> None:
        """Shows the current step of training, on a terminal only."""
        self.begin('training', quiet=True)
        self.count(step, last, 'steps', self._shown_metrics)

    def metrics(self, step: int, last: int, **values: Any) -> None:
        """Shows training's metrics at a step (`loss=3.21`), and the time left."""
        shown = [
            f'  {name.replace("_", " ")} {cell(value)}'
            for name, value in values.items()
        ]
        self._shown_metrics = ''.join(shown)
        if self._is_live:
            self.step(step, last)
        else:
            seconds = self._progress.tasks[0].time_remaining
            left = '?' if seconds is None else duration(seconds)
            self.say(f'step {step:,}/{last:,}{self._shown_metrics}  {left} left')

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

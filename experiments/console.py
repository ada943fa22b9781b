"""What a run prints: facts, tables and its progress."""

import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO


def facts(values: Mapping[str, Any]) -> str:
    """A line for each value, the values one below the other; numbers with commas."""
    width = max(map(len, values), default=0)
    return '\n'.join(
        f'{name:<{width}}  {cell(value)}' for name, value in values.items()
    )


def table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns of one width under their names, numbers to the right; None is a dash."""
    columns = [_column(column) for column in zip(names, *rows, strict=True)]
    return '\n'.join('  '.join(line).rstrip() for line in zip(*columns, strict=True))


def _column(values: Sequence[Any]) -> list[str]:
    name, *cells = [cell(value) for value in values]
    width = max(map(len, [name, *cells]))
    lines = [name, '-' * width, *cells]
    to_right = any(map(_is_number, values))
    return [line.rjust(width) if to_right else line.ljust(width) for line in lines]


def cell(value: Any) -> str:
    if value is None:
        return '-'
    if isinstance(value, float):
        return f'{value:,.0f}' if abs(value) >= 1000 else f'{value:.4g}'
    return f'{value:,}' if _is_number(value) else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class Progress:
    """Where a run stands: a line that is rewritten in place, or lines where that cannot be.

    Args:
      total: the last step.
      start: the step that this process goes on from; time left is reckoned from there.
    """

    def __init__(
        self,
        total: int,
        start: int = 0,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._total, self._start = total, start
        self._out, self._clock = out or sys.stdout, clock
        self._began = clock()
        self._in_place = self._out.isatty()
        self._line = ''

    def update(self, step: int, **values: Any) -> None:
        """Shows the step, the values (`loss=3.21`) and the time left."""
        text = '  '.join(
            f'{name.replace("_", " ")} {cell(v)}' for name, v in values.items()
        )
        line = f'step {step:,}/{self._total:,}  {text}  {self._time_left(step)} left'
        if not self._in_place:
            print(line, file=self._out, flush=True)
            return
        self._line = f'{self._bar(step)} {line}'[
            : shutil.get_terminal_size().columns - 1
        ]
        self._rewrite(self._line)

    def say(self, text: str = '') -> None:
        """Prints a text above the line."""
        if self._line:
            self._rewrite('')
        print(text, file=self._out, flush=True)
        if self._line:
            self._rewrite(self._line)

    def close(self) -> None:
        """Leaves the line standing; what is printed next begins a new one."""
        if self._line:
            print(file=self._out, flush=True)
        self._line = ''

    def _rewrite(self, line: str) -> None:
        self._out.write(f'\r\x1b[K{line}')
        self._out.flush()

    def _bar(self, step: int) -> str:
        done = round(20 * step / max(self._total, 1))
        return f'[{"=" * done}{" " * (20 - done)}]'

    def _time_left(self, step: int) -> str:
        done = step - self._start
        if done <= 0:
            return '?'
        seconds = round((self._clock() - self._began) / done * (self._total - step))
        minutes, seconds = divmod(seconds, 60)
        hours, minutes = divmod(minutes, 60)
        return (
            f'{hours}:{minutes:02}:{seconds:02}' if hours else f'{minutes}:{seconds:02}'
        )

"""Output of facts, numbers and tables, and input lines."""

import functools
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from experiments import storage
from experiments.errors import UserError, printable

_BLOCK = 1 << 20  # bytes per read, which only files fill
_LINE_TIMEOUT = 0.1  # seconds to wait for further lines
_EXPONENT_FROM = 1e9  # larger numbers are formatted with an exponent
_SUPERSCRIPTS = str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹')


class SafeOutput:
    """A text stream that writes control characters of another one as escapes."""

    def __init__(self, exact: TextIO):
        self.exact = exact

    def write(self, text: str) -> int:
        return self.exact.write(printable(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.exact, name)


def exact(stream: TextIO) -> TextIO:
    """Returns the stream below a `SafeOutput`, and any other stream unchanged."""
    return getattr(stream, 'exact', stream)


def print_data(text: str) -> None:
    """Prints text that programs read; only a terminal gets escapes."""
    stream = sys.stdout if sys.stdout.isatty() else exact(sys.stdout)
    print(text, file=stream)


def facts(values: Mapping[str, Any]) -> str:
    """Returns one line per value, with aligned values; numbers have commas."""
    cells = {cell(name): cell(value) for name, value in values.items()}
    width = max(map(len, cells), default=0)
    return '\n'.join(f'{name:<{width}}  {value}' for name, value in cells.items())


def table(
    names: Sequence[str],
    rows: Sequence[Sequence[Any]],
    decimals: Mapping[str, int] = {},
) -> str:
    """Returns a table with a header; numbers align right, None is a dash.

    Args:
      decimals: Number of decimals by column, for columns that share it.
    """
    forms = [number_form(decimals.get(name)) for name in names]
    cells = [[form(x) for form, x in zip(forms, row, strict=True)] for row in rows]
    sides = [
        'right' if any(map(is_number, column)) else 'left'
        for column in zip(*rows, strict=True)
    ]
    return format_table(names, cells, sides)


def format_table(
    names: Sequence[str],
    cells: Sequence[Sequence[str]],
    sides: Sequence[str],
    form: str = 'simple',
) -> str:
    """Returns a table of texts, in a format of tabulate.

    Args:
      sides: The alignment of each column, 'right' or 'left'.
    """
    import tabulate  # slow to import, and most commands don't need it

    tabulate.MIN_PADDING = 0  # by default, a column is wider than its name
    names, *cells = [list(map(cell, row)) for row in (names, *cells)]
    text = tabulate.tabulate(
        cells, names, form, colalign=sides or None, disable_numparse=True
    )
    return '\n'.join(line.rstrip() for line in text.splitlines())


def cell(value: Any) -> str:
    if value is None:
        return '-'
    if isinstance(value, float):
        return _format_float(value)
    return f'{value:,}' if is_number(value) else printable(str(value), keep='')


def _format_float(value: float) -> str:
    """Formats a float: `0.1234`, `12,345`, `1.5 × 10¹²`."""
    if 1000 <= abs(value) < _EXPONENT_FROM:
        return f'{value:,.0f}'
    text = f'{value:.4g}'
    if 'e' not in text:
        return text
    digits, exponent = f'{value:.2e}'.split('e')
    return f'{float(digits):g} × 10{str(int(exponent)).translate(_SUPERSCRIPTS)}'


def number_form(decimals: int | None) -> Callable[[Any], str]:
    """Returns a format with the given number of decimals, or `cell` for None."""
    return cell if decimals is None else functools.partial(score, decimals=decimals)


def score(value: Any, decimals: int = 2) -> str:
    if is_number(value) and abs(value) < _EXPONENT_FROM:
        return f'{value:,.{decimals}f}'
    return cell(value)


def gigabytes(size: float) -> str:
    return f'{size / 1e9:.2f} GB'


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def count_noun(number: int, noun: str) -> str:
    """Returns a number with its noun: `1 arm`, `2 arms`."""
    return f'{number:,} {noun}' if number == 1 else f'{number:,} {noun}s'


def say_next(command: str) -> None:
    print('next:', command)


def duration(seconds: float) -> str:
    """Formats seconds as `2:05`, or as `1:02:05` from an hour on."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f'{hours}:{minutes:02}:{seconds:02}'
    return f'{minutes}:{seconds:02}'


def line_windows(descriptor: int, most: int = sys.maxsize) -> Iterator[list[str]]:
    """Yields lists of at most `most` lines of a file, pipe or terminal.

    A single line comes at once. Several wait up to 0.1 seconds for further lines, since
    a pipe holds only 64 KiB.

    Only a line feed ends a line; the last line may lack it. Lines are decoded as UTF-8
    in any locale, without byte order marks.
    """
    if os.isatty(descriptor):
        print('reading from standard input; press Ctrl-D to end', file=sys.stderr)
    number = 0
    lines: list[bytes] = []
    rest, block = b'', b'-'  # an incomplete line; empty at the end
    deadline = 0.0
    while block or lines:
        seconds = deadline - time.monotonic() if len(lines) > 1 else 0
        is_full = len(lines) >= most or not block
        if not lines or not is_full and _has_more(descriptor, seconds):
            # A file object would wait until a block is full.
            block = os.read(descriptor, _BLOCK)
            if not lines:
                deadline = time.monotonic() + _LINE_TIMEOUT
            *ended, rest = (rest + block).split(b'\n')
            lines += [line + b'\n' for line in ended]
            if rest and not block:
                lines.append(rest)
            continue
        window = lines[:most]
        yield from _decoded(window, number)
        number += len(window)
        del lines[:most]
        deadline = time.monotonic() + _LINE_TIMEOUT


def _has_more(descriptor: int, seconds: float) -> bool:
    if os.name != 'posix':
        return False  # Windows can only wait for sockets
    ready, _, _ = select.select([descriptor], [], [], max(0, seconds))
    return bool(ready)


def _decoded(lines: Sequence[bytes], before: int) -> Iterator[list[str]]:
    texts = []
    for number, line in enumerate(lines, before + 1):
        try:
            if number == 1:
                storage.check_line_ends(line)
            texts.append(storage.decode_line(line))
        except ValueError as error:
            if texts:
                yield texts
            raise UserError(f'standard input, line {number}, {error}') from None
    yield texts

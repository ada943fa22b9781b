"""How facts, numbers and tables are printed, and lines of standard input are read."""

import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from experiments import storage
from experiments.errors import UserError

_BLOCK = 1 << 20  # bytes to read at once, which only files give
_RAISED = str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹')


def facts(values: Mapping[str, Any]) -> str:
    """A line for each value, the values one below the other; numbers with commas."""
    width = max(map(len, values), default=0)
    lines = [f'{name:<{width}}  {cell(value)}' for name, value in values.items()]
    return '\n'.join(lines)


def table(
    names: Sequence[str], rows: Sequence[Sequence[Any]], scores: Collection[str] = ()
) -> str:
    """A table with names over its columns; numbers to the right, None as a dash.

    Args:
      scores: the names of columns of metrics, such as BLEU, which have two decimals.
    """
    forms = [score if name in scores else cell for name in names]
    cells = [[form(x) for form, x in zip(forms, row, strict=True)] for row in rows]
    sides = [
        'right' if any(map(is_number, column)) else 'left'
        for column in zip(*rows, strict=True)
    ]
    return tabulated(names, cells, sides)


def tabulated(
    names: Sequence[str],
    cells: Sequence[Sequence[str]],
    sides: Sequence[str],
    form: str = 'simple',
) -> str:
    """A table of texts.

    Args:
      names: of the columns.
      cells: the rows.
      sides: of each column, 'right' or 'left'.
      form: as tabulate calls it.
    """
    import tabulate  # here, for most commands need none before they have worked

    tabulate.MIN_PADDING = 0  # names of columns are no wider than they are
    text = tabulate.tabulate(
        cells, names, form, colalign=sides or None, disable_numparse=True
    )
    return '\n'.join(line.rstrip() for line in text.splitlines())


def cell(value: Any) -> str:
    """A value as facts and tables show it."""
    if value is None:
        return '-'
    if isinstance(value, float):
        return _of_float(value)
    return f'{value:,}' if is_number(value) else str(value)


def _of_float(value: float) -> str:
    """`0.1234`, `12,345`, `1.5 × 10¹²`."""
    if 1000 <= abs(value) < 1e9:
        return f'{value:,.0f}'
    text = f'{value:.4g}'
    if 'e' not in text:
        return text
    digits, exponent = f'{value:.2e}'.split('e')
    return f'{float(digits):g} × 10{str(int(exponent)).translate(_RAISED)}'


def score(value: Any) -> str:
    """The score of a metric, as papers print it."""
    return f'{value:.2f}' if is_number(value) else cell(value)


def gigabytes(size: float) -> str:
    return f'{size / 1e9:.2f} GB'


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun: `1 arm`, `2 arms`."""
    return f'{number:,} {noun}' if number == 1 else f'{number:,} {noun}s'


def say_next(command: str) -> None:
    """Says to a person, at a terminal, what comes next; in other outputs nothing."""
    if sys.stdout.isatty():
        print('next:', command)


def duration(seconds: float) -> str:
    """`2:05`, or `1:02:05` from an hour on."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f'{hours}:{minutes:02}:{seconds:02}'
    return f'{minutes}:{seconds:02}'


def line_windows(descriptor: int) -> Iterator[list[str]]:
    """The lines of a file, a pipe or a terminal: each time those that have arrived.

    Only a line feed ends a line; what follows the last one is one, too. They are UTF-8
    whatever the locale, and byte order marks are removed.

    Raises:
      UserError: a line is not UTF-8 or too long, or line ends are CR alone; the lines
        before it were yielded.
    """
    if os.isatty(descriptor):
        print('reading lines from here; Ctrl-D ends', file=sys.stderr)
    number = 0
    rest = []  # the blocks of a line that has not ended
    # Not by a file object, which would wait until a block is full.
    while block := os.read(descriptor, _BLOCK):
        *lines, last = block.split(b'\n')
        if lines:
            lines[0] = b''.join([*rest, lines[0]])
            rest.clear()
            yield from _decoded(lines, number)
            number += len(lines)
        rest.append(last)
        if sum(map(len, rest)) > storage.LONGEST_LINE:
            break  # `decode_line` refuses it
    if line := b''.join(rest):
        yield from _decoded([line], number, is_whole=number == 0)


def _decoded(
    lines: Sequence[bytes], before: int, is_whole: bool = False
) -> Iterator[list[str]]:
    """The lines as one list of texts; those before one that is not UTF-8."""
    texts = []
    for line in lines:
        try:
            if is_whole:
                storage.check_line_ends(line)
            texts.append(storage.decode_line(line))
        except ValueError as error:
            yield texts
            where = f'standard input, line {before + len(texts) + 1}'
            raise UserError(f'{where}, {error}') from None
    if texts:
        yield texts

"""How facts, numbers and tables are printed."""

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any


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
    import tabulate  # here, for most commands need none before they have worked

    tabulate.MIN_PADDING = 0  # names of columns are no wider than they are
    forms = [score if name in scores else cell for name in names]
    cells = [[form(x) for form, x in zip(forms, row, strict=True)] for row in rows]
    sides = [
        'right' if any(map(_is_number, column)) else 'left'
        for column in zip(*rows, strict=True)
    ]
    text = tabulate.tabulate(
        cells, names, 'simple', colalign=sides or None, disable_numparse=True
    )
    return '\n'.join(line.rstrip() for line in text.splitlines())


def cell(value: Any) -> str:
    """A value as facts and tables show it."""
    if value is None:
        return '-'
    if isinstance(value, float):
        return f'{value:,.0f}' if abs(value) >= 1000 else f'{value:.4g}'
    return f'{value:,}' if _is_number(value) else str(value)


def score(value: Any) -> str:
    """The score of a metric, as papers print it."""
    return f'{value:.2f}' if _is_number(value) else cell(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


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

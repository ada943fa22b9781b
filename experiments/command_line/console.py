"""How facts, numbers and tables are printed."""

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
    columns = []
    for name, *values in zip(names, *rows, strict=True):
        form = score if name in scores else cell
        cells = [form(value) for value in values]
        width = max(map(len, [name, *cells]))
        side = '>' if any(map(_is_number, values)) else '<'
        column = [f'{text:{side}{width}}' for text in (name, '-' * width, *cells)]
        columns.append(column)
    lines = zip(*columns, strict=True)
    return '\n'.join('  '.join(line).rstrip() for line in lines)


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


def duration(seconds: float) -> str:
    """`2:05`, or `1:02:05` from an hour on."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f'{hours}:{minutes:02}:{seconds:02}'
    return f'{minutes}:{seconds:02}'

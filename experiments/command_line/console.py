"""How facts, numbers and tables are printed."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any


def facts(values: Mapping[str, Any]) -> str:
    """A line for each value, the values one below the other; numbers with commas."""
    width = max(map(len, values), default=0)
    return '\n'.join(
        f'{name:<{width}}  {cell(value)}' for name, value in values.items()
    )


def table(
    names: Sequence[str], rows: Sequence[Sequence[Any]], scores: Collection[str] = ()
) -> str:
    """Columns of one width under their names, numbers to the right; None is a dash.

    Args:
      scores: the names of columns of BLEU and the like, which have two decimals.
    """
    columns = [
        _column(column, score if column[0] in scores else cell)
        for column in zip(names, *rows, strict=True)
    ]
    return '\n'.join('  '.join(line).rstrip() for line in zip(*columns, strict=True))


def _column(values: Sequence[Any], form: Callable[[Any], str]) -> list[str]:
    name, *cells = [values[0], *map(form, values[1:])]
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


def score(value: Any) -> str:
    """BLEU or chrF, from 0 to 100, as papers print them."""
    return f'{value:.2f}' if _is_number(value) else cell(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

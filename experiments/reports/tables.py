"""Tables of a report in several formats."""

import csv
import html
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.command_line import console
from experiments.errors import printable
from experiments.sweeps.analysis import (
    Contrast,
    FixedNumberDifference,
    SentenceDifference,
    Spread,
)

# Markdown's markup characters, which are escaped in text.
_MARKUP = re.compile(r'([\\`*_\[\]~|#$])')
_SUPERSCRIPT_DIGITS = str.maketrans('⁻⁰¹²³⁴⁵⁶⁷⁸⁹', '-0123456789')
_EXPONENT = re.compile('[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+')
_LATEX = {'±': r'$\pm$', '−': '$-$', '≤': r'$\leq$', '×': r'$\times$', 'μ': r'$\mu$'}
_PREAMBLE = '% In the preamble: \\usepackage{booktabs}\n'
_CAPITALS = {'bleu': 'BLEU', 'chrf': 'chrF', 'ter': 'TER'}
_METRICS = re.compile(rf'\b({"|".join(_CAPITALS)})\b')
_MAX_DECIMALS = 6
_BYTES = ', bytes'  # suffix of columns whose values are formatted in gigabytes


Form = Callable[[Any], str]


class PValue(float):
    """A p-value, shown with its own precision."""


class Interval(NamedTuple):
    low: float
    high: float


# Columns of a value in CSV: suffix of the column's name → attribute.
_PARTS = {
    Spread: {'': 'mean', ' sd': 'sd', ' seeds': 'n'},
    Interval: {' low': 'low', ' high': 'high'},
}


class Table(NamedTuple):
    """Rows of values with column names; None is shown as a dash.

    Attributes:
      name: The name of its files.
      decimals: As for `console.table`.
      aside: Why a page collapses the table, if it does.
    """

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    decimals: Mapping[str, int] = {}
    note: str = ''
    aside: str = ''

    def cells(self) -> list[list[str]]:
        forms = list(map(self._form, self.columns))
        return [list(map(format_cell, row, forms)) for row in self.rows]

    def names(self) -> list[str]:
        """Returns the column names as a reader sees them."""
        return [name.removesuffix(_BYTES) for name in self.columns]

    def _form(self, column: str) -> Form:
        if column.endswith(_BYTES):
            return console.gigabytes
        return console.number_form(self.decimals.get(column))

    def sides(self) -> list[str]:
        columns = zip(*self.rows, strict=True)
        return ['right' if any(map(_is_number, x)) else 'left' for x in columns]


def _is_number(value: Any) -> bool:
    return isinstance(value, Spread | Interval) or console.is_number(value)


def format_cell(value: Any, form: Form = console.cell) -> str:
    """Formats a value of any kind for tables; `form` formats a number."""
    match value:
        case None:
            return console.cell(None)
        case Spread():
            return _spread(value, form)
        case Interval():
            low, high = (format_cell(end, form) for end in value)
            return f'{low} to {high}'
        case PValue():
            return '< 0.001' if value < 0.001 else f'{value:.3f}'
    if console.is_number(value) and value < 0:
        return f'−{form(-value)}'
    return form(value)


def _spread(value: Spread, form: Form) -> str:
    mean, sd, _ = value
    if not sd:
        return format_cell(mean, form)
    if form is console.cell:
        # The mean gets as many decimals as the deviation's first two digits.
        form = console.number_form(_decimals(sd, digits=2))
    return f'{format_cell(mean, form)} ± {form(sd)}'


def _decimals(value: float, digits: int) -> int:
    """Returns the number of decimals that show the first digits of a number."""
    if not value:
        return 0
    return min(_MAX_DECIMALS, max(0, digits - 1 - math.floor(math.log10(abs(value)))))


def column_decimals(
    names: Iterable[str], rows: Iterable[Sequence[Any]]
) -> dict[str, int]:
    """Returns decimals for each column that show its largest number in four digits."""
    columns = zip(*rows, strict=True)
    return dict(zip(names, map(shared_decimals, columns), strict=True))


def shared_decimals(values: Iterable[Any]) -> int:
    """Returns decimals that show the largest number in four digits; 0 for integers."""
    numbers = []
    for value in values:
        match value:
            case Spread():
                numbers.append(value.mean)
            case Interval():
                numbers += value
            case int() | float():
                numbers.append(value)
    if all(number == round(number) for number in numbers):
        return 0
    return _decimals(max(map(abs, numbers)), digits=4)


def contrast_cells(
    contrast: Contrast | SentenceDifference | FixedNumberDifference,
) -> tuple[float, Interval | None, PValue | None]:
    effect, low, high, p = contrast.effect, contrast.low, contrast.high, contrast.p
    if low is None or high is None or p is None:
        return effect, None, None
    return effect, Interval(low, high), PValue(p)


def permutation_p(contrast: Contrast) -> PValue | None:
    return None if contrast.permuted is None else PValue(contrast.permuted)


def text(table: Table) -> str:
    return console.format_table(table.names(), table.cells(), table.sides())


def markdown(table: Table) -> str:
    """Formats a table in GitHub's Markdown, escaped."""
    rows = [list(map(escape_markdown, row)) for row in table.cells()]
    names = list(map(escape_markdown, table.names()))
    return console.format_table(names, rows, table.sides(), 'pipe')


def escape_markdown(value: str) -> str:
    """Escapes a value for Markdown and for HTML inside it."""
    return _MARKUP.sub(r'\\\1', html.escape(printable(value), quote=False))


def latex(table: Table) -> str:
    """Formats a table for a paper, with booktabs."""
    sides = table.sides()
    names = [_METRICS.sub(lambda x: _CAPITALS[x[0]], name) for name in table.names()]
    body = console.format_table(names, table.cells(), sides, 'latex_booktabs')
    body = _EXPONENT.sub(
        lambda x: f'$^{{{x[0].translate(_SUPERSCRIPT_DIGITS)}}}$', body
    )
    return f'{_PREAMBLE}{body.translate(str.maketrans(_LATEX))}\n'


def as_csv(table: Table) -> str:
    """Formats unrounded values as CSV; deviations and seeds have their own columns."""
    columns = {}
    for i, name in enumerate(table.columns):
        values = [row[i] for row in table.rows]
        parts = {}
        for value in values:
            parts |= _PARTS.get(type(value), {})
        if not parts:
            columns[name] = values
        for end, part in parts.items():
            columns[name + end] = [getattr(value, part, None) for value in values]
    output = io.StringIO()
    writer = csv.writer(output, lineterminator='\n')
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return output.getvalue()

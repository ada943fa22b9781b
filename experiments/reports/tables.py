"""Tables of a report, as text, Markdown, CSV and LaTeX."""

import csv
import html
import io
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from experiments.command_line import console
from experiments.reports.analysis import Contrast, OverSentences, Spread

# In Markdown these would be markup: a sentence that holds them shows as text.
_MARKUP = re.compile(r'([\\`*_\[\]~|#$])')
_LATEX = {raised: f'$^{i}$' for i, raised in enumerate('⁰¹²³⁴⁵⁶⁷⁸⁹')}
_LATEX |= {'⁻': '$^-$', '±': r'$\pm$', '−': '$-$', '≤': r'$\leq$', '×': r'$\times$'}
_PREAMBLE = '% In the preamble: \\usepackage{booktabs}\n'
_CAPITALS = {'bleu': 'BLEU', 'chrf': 'chrF', 'comet': 'COMET', 'ter': 'TER'}
_METRICS = re.compile(rf'\b({"|".join(_CAPITALS)})\b')
_BYTES = ', bytes'  # at the end of a column's name: a reader sees gigabytes


Form = Callable[[Any], str]


class PValue(float):
    """A probability, which tables show as one."""


class Difference(float):
    """How far one score is above another, which tables show with its sign."""


class Interval(NamedTuple):
    """What lies between two ends, both of them included."""

    low: float
    high: float


# What CSV has of a value, by the end of the column's name.
_PARTS = {
    Spread: {'': 'mean', ' sd': 'sd', ' seeds': 'n'},
    Interval: {' low': 'low', ' high': 'high'},
}


class Table(NamedTuple):
    """Rows of values under names.

    Attributes:
      name: of its files.
      title: what stands above it.
      columns: names of the columns.
      rows: a value for each column; None is shown as a dash, a `Spread` as mean ±
        standard deviation.
      scores: names of columns whose numbers have two decimals.
      note: what stands below it.
      aside: Why a page folds the table away; empty for a table that is shown.
    """

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    scores: Collection[str] = ()
    note: str = ''
    aside: str = ''

    def cells(self) -> list[list[str]]:
        """The values as text."""
        forms = list(map(self._form, self.columns))
        return [list(map(shown, row, forms)) for row in self.rows]

    def names(self) -> list[str]:
        """Of the columns, as a reader sees them."""
        return [name.removesuffix(_BYTES) for name in self.columns]

    def _form(self, column: str) -> Form:
        if column.endswith(_BYTES):
            return console.gigabytes
        if column in self.scores:
            return console.score
        return console.cell

    def sides(self) -> list[str]:
        """'right' for columns of numbers, 'left' for others."""
        sides = []
        for column in zip(*self.rows, strict=True):
            has_numbers = any(map(_is_number, column))
            sides.append('right' if has_numbers else 'left')
        return sides


def _is_number(value: Any) -> bool:
    return isinstance(value, Spread | Interval) or console.is_number(value)


def shown(value: Any, form: Form = console.cell) -> str:
    """A value as tables show it.

    Args:
      value: of any kind.
      form: of a number.
    """
    match value:
        case None:
            return console.cell(None)
        case Spread():
            return _spread(value, form)
        case Interval():
            low, high = (shown(Difference(end), form) for end in value)
            return f'{low} to {high}'
        case Difference():
            sign = '−' if value < 0 else '+'
            return f'{sign}{form(abs(value))}'
        case PValue():
            return '< 0.001' if value < 0.001 else f'{value:.3f}'
    return form(value)


def _spread(value: Spread, form: Form) -> str:
    """The mean, and two digits of a deviation that is not 0."""
    mean = form(value.mean)
    sd = value.sd
    if not sd:
        return mean
    # A score's has as many decimals as the score.
    if form is not console.score:
        sd = float(f'{sd:.2g}')
    return f'{mean} ± {form(sd)}'


def cells_of(
    contrast: Contrast | OverSentences,
) -> tuple[Difference, Interval | None, PValue | None]:
    """The difference, its interval and its p, as tables show them."""
    effect = Difference(contrast.effect)
    low, high, p = contrast.low, contrast.high, contrast.p
    if low is None or high is None or p is None:
        return effect, None, None
    return effect, Interval(low, high), PValue(p)


def permuted(contrast: Contrast) -> PValue | None:
    """Its p by permutation, where there is one."""
    if contrast.permuted is None:
        return None
    return PValue(contrast.permuted)


def text(table: Table) -> str:
    """For a terminal: columns of equal width under a rule."""
    return console.tabulated(table.names(), table.cells(), table.sides())


def markdown(table: Table) -> str:
    """As GitHub's Markdown, in which all of the values are text and no markup."""
    rows = [list(map(escape_markdown, row)) for row in table.cells()]
    names = list(map(escape_markdown, table.names()))
    return console.tabulated(names, rows, table.sides(), 'pipe')


def escape_markdown(value: str) -> str:
    """The value as text in Markdown and in the HTML that Markdown may hold."""
    return _MARKUP.sub(r'\\\1', html.escape(value, quote=False))


def latex(table: Table) -> str:
    """For a paper, with booktabs and the usual capitals of metrics."""
    sides = table.sides()
    names = [_METRICS.sub(_in_capitals, name) for name in table.names()]
    body = console.tabulated(names, table.cells(), sides, 'latex_booktabs')
    return f'{_PREAMBLE}{body.translate(str.maketrans(_LATEX))}\n'


def _in_capitals(metric: re.Match[str]) -> str:
    return _CAPITALS[metric[0]]


def as_csv(table: Table) -> str:
    """The numbers as they are, a mean's deviation and number of seeds beside it."""
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

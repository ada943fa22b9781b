"""Tables of a report, as text, Markdown, CSV and LaTeX."""

import csv
import dataclasses
import html
import io
import re
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import tabulate

from experiments.command_line import console
from experiments.reports.analysis import Contrast, OverSentences, Spread

tabulate.MIN_PADDING = 0  # names of columns are no wider than they are

# In Markdown these would be markup: a sentence that holds them shows as text.
_MARKUP = re.compile(r'([\\`*_\[\]~|#$])')
_LATEX = {'±': r'$\pm$', '−': '$-$', '≤': r'$\leq$'}


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


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of values under names.

    Attributes:
      name: of its files.
      title: what stands above it.
      columns: names of the columns.
      rows: a value for each column; None is shown as a dash, a `Spread` as mean ±
        standard deviation.
      scores: names of columns whose numbers have two decimals.
      note: what stands below it.
    """

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    scores: Collection[str] = ()
    note: str = ''

    def cells(self) -> list[list[str]]:
        """The values as text."""
        are_scores = [name in self.scores for name in self.columns]
        return [list(map(shown, row, are_scores)) for row in self.rows]

    def alignment(self) -> list[str]:
        """'right' for columns of numbers, 'left' for others."""
        return [
            'right' if any(_is_number(row[i]) for row in self.rows) else 'left'
            for i in range(len(self.columns))
        ]


def _is_number(value: Any) -> bool:
    kinds = int | float | Spread | Interval
    return isinstance(value, kinds) and not isinstance(value, bool)


def shown(value: Any, is_score: bool = False) -> str:
    """A value as tables show it."""
    form = console.score if is_score else console.cell
    if isinstance(value, Spread):
        mean = form(value.mean)
        return mean if value.sd is None else f'{mean} ± {form(value.sd)}'
    if isinstance(value, Interval):
        low, high = (shown(Difference(end), is_score) for end in value)
        return f'{low} to {high}'
    if isinstance(value, Difference):
        sign = '−' if value < 0 else '+'
        return f'{sign}{form(abs(value))}'
    if isinstance(value, PValue):
        return '< 0.001' if value < 0.001 else f'{value:.3f}'
    return form(value)


def cells_of(
    contrast: Contrast | OverSentences,
) -> tuple[Difference, Interval | None, PValue | None]:
    """The difference, its interval and its p, as tables show them."""
    effect = Difference(contrast.effect)
    if contrast.low is None or contrast.high is None or contrast.p is None:
        return effect, None, None
    return effect, Interval(contrast.low, contrast.high), PValue(contrast.p)


def text(table: Table) -> str:
    """For a terminal: columns of equal width under a rule."""
    return _tabulated(table, table.cells(), table.columns, 'simple')


def markdown(table: Table) -> str:
    """As GitHub's Markdown, in which all of the values are text and no markup."""
    rows = [list(map(escape_markdown, row)) for row in table.cells()]
    return _tabulated(table, rows, list(map(escape_markdown, table.columns)), 'pipe')


def escape_markdown(value: str) -> str:
    """The value as text in Markdown and in the HTML that Markdown may hold."""
    return _MARKUP.sub(r'\\\1', html.escape(value, quote=False))


def latex(table: Table) -> str:
    """For a paper, with booktabs."""
    body = _tabulated(table, table.cells(), table.columns, 'latex_booktabs')
    for sign, command in _LATEX.items():
        body = body.replace(sign, command)
    return f'{body}\n'


def _tabulated(
    table: Table, rows: Sequence[Sequence[str]], names: Sequence[str], form: str
) -> str:
    lines = tabulate.tabulate(
        rows,
        names,
        tablefmt=form,
        colalign=table.alignment() if rows else None,
        disable_numparse=True,
    )
    return '\n'.join(line.rstrip() for line in lines.splitlines())


def as_csv(table: Table) -> str:
    """The numbers as they are, a mean's deviation and number of seeds beside it."""
    columns: dict[str, list[Any]] = {}
    for i, name in enumerate(table.columns):
        values = [row[i] for row in table.rows]
        parts = [_PARTS[type(value)] for value in values if type(value) in _PARTS]
        if not parts:
            columns[name] = values
            continue
        for end, part in parts[0].items():
            columns[name + end] = [getattr(value, part, None) for value in values]
    output = io.StringIO()
    writer = csv.writer(output, lineterminator='\n')
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return output.getvalue()

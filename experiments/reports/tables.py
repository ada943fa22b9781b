"""Tables of a report, as text, Markdown, CSV and LaTeX."""

import csv
import dataclasses
import html
import io
import re
from collections.abc import Collection, Sequence
from typing import Any

import tabulate

from experiments.command_line import console
from experiments.reports.analysis import Contrast, OverSentences
from experiments.reports.statistics import Difference, Interval, PValue, Spread

tabulate.MIN_PADDING = 0  # names of columns are no wider than they are

# In Markdown these would be markup: a sentence that holds them shows as text.
_MARKUP = re.compile(r'([\\`*_\[\]~|#$])')


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
        sides = []
        for i in range(len(self.columns)):
            values = [row[i] for row in self.rows if row[i] is not None]
            sides.append('right' if any(map(_is_number, values)) else 'left')
        return sides


def shown(value: Any, is_score: bool = False) -> str:
    """A value as tables show it."""
    form = console.score if is_score else console.cell
    if isinstance(value, Spread):
        mean = form(value.mean)
        return mean if value.sd is None else f'{mean} ± {form(value.sd)}'
    if isinstance(value, Interval):
        return f'{_signed(value.low, is_score)} to {_signed(value.high, is_score)}'
    if isinstance(value, Difference):
        return _signed(value, is_score)
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


def _signed(value: float, is_score: bool) -> str:
    """With its sign, for a difference."""
    form = console.score if is_score else console.cell
    sign = '−' if value < 0 else '+'
    return f'{sign}{form(abs(value))}'


def _is_number(value: Any) -> bool:
    kinds = int | float | Spread | Interval
    return isinstance(value, kinds) and not isinstance(value, bool)


def text(table: Table) -> str:
    """For a terminal: columns of equal width under a rule."""
    return _tabulated(table, table.cells(), table.columns, 'simple')


def markdown(table: Table) -> str:
    """As GitHub's Markdown, in which all of the values are text and no markup."""
    rows = [[escape_markdown(cell) for cell in row] for row in table.cells()]
    names = [escape_markdown(name) for name in table.columns]
    return _tabulated(table, rows, names, 'pipe')


def escape_markdown(value: str) -> str:
    """The value as text in Markdown and in the HTML that Markdown may hold."""
    return _MARKUP.sub(r'\\\1', html.escape(value, quote=False))


def latex(table: Table) -> str:
    """For a paper, with booktabs."""
    rows = table.cells()
    body = _tabulated(table, rows, table.columns, 'latex_booktabs')
    for sign, command in (('±', r'$\pm$'), ('−', '$-$'), ('≤', r'$\leq$')):
        body = body.replace(sign, command)
    return body + '\n'


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


# What CSV has of a value, by the end of the column's name.
_PARTS = {
    Spread: {'': 'mean', ' sd': 'sd', ' seeds': 'n'},
    Interval: {' low': 'low', ' high': 'high'},
}


def as_csv(table: Table) -> str:
    """The numbers as they are, a mean's deviation and number of seeds beside it."""
    columns: dict[str, list[Any]] = {}
    for i, name in enumerate(table.columns):
        values = [row[i] for row in table.rows]
        kinds = [kind for kind in map(type, values) if kind in _PARTS]
        if not kinds:
            columns[name] = values
            continue
        for end, part in _PARTS[kinds[0]].items():
            columns[name + end] = [getattr(value, part, None) for value in values]
    output = io.StringIO()
    writer = csv.writer(output, lineterminator='\n')
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return output.getvalue()

"""What a figure shows, apart from how it is drawn; matplotlib and Plotly read it."""

import dataclasses
from collections.abc import Sequence

# Okabe and Ito's colours, which colour-blind readers can tell apart, without the yellow
# that is too pale for a line, and with a grey for black, which no dark page shows.
COLOURS = (
    *('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#56B4E9', '#E69F00'),
    '#7A7A7A',
)
MARK = COLOURS[1]  # of a cell in a heatmap
_LONGEST = 18  # characters of a name on an axis
DASHES = ('solid', 'dash', 'dot')  # the next for each round of the colours


@dataclasses.dataclass(frozen=True)
class Line:
    """A line, or points, with a band or bars from `low` to `high` where these are.

    Attributes:
      name: in the legend.
      x: numbers, or names of places on the axis.
      y: as many numbers.
      low, high: as many numbers; empty for none.
    """

    name: str
    x: Sequence[float] | Sequence[str]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclasses.dataclass(frozen=True)
class Chart:
    """Lines over one pair of axes.

    Attributes:
      name: of its files.
      title: what stands above it.
      x_label, y_label: of the axes.
      lines: at least one.
      style: 'band' draws lines in bands, 'bars' points joined by lines with bars, and
        'points' points that are not joined.
      log_x: whether the horizontal axis is logarithmic.
      note: what stands below it.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    style: str = 'band'
    log_x: bool = False
    note: str = ''


@dataclasses.dataclass(frozen=True)
class Heatmap:
    """Numbers in cells.

    Attributes:
      title: what stands above it.
      rows: names of the rows, from the top.
      columns: names of the columns.
      values: a list for each row.
      marks: the cells that are marked: a column for each row, or none.
    """

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float]]
    marks: Sequence[int] = ()


@dataclasses.dataclass(frozen=True)
class Heatmaps:
    """Heatmaps side by side, over one scale of colours.

    Attributes:
      name: of its files.
      title: what stands above them.
      x_label, y_label: of all of their axes.
      maps: by rows of the figure.
      diverging: whether the colours part at zero; otherwise they begin there.
      one_at_a_time: whether they are too small for the names on their axes, and a page
        shows one of them large.
      note: what stands below it.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    maps: tuple[tuple[Heatmap, ...], ...]
    diverging: bool = False
    one_at_a_time: bool = False
    note: str = ''

    def one(self, row: int, column: int) -> 'Heatmaps':
        """One of the heatmaps alone, with the names on its axes."""
        heatmap = self.maps[row][column]
        title = f'{self.title}: {heatmap.title}'
        maps = ((dataclasses.replace(heatmap, title=title),),)
        name = f'{self.name}_{row}_{column}'
        return dataclasses.replace(self, name=name, maps=maps, one_at_a_time=False)

    @property
    def is_large(self) -> bool:
        """Whether it is one heatmap with names on its axes."""
        return not self.one_at_a_time and len(self.maps) == len(self.maps[0]) == 1

    def limits(self) -> tuple[float, float]:
        """The ends of the scale of colours."""
        values = []
        for row in self.maps:
            for heatmap in row:
                values += [value for line in heatmap.values for value in line]
        largest = max(map(abs, values), default=0.0) or 1.0
        return (-largest if self.diverging else 0.0), largest


Figure = Chart | Heatmaps


def short(name: str) -> str:
    """A name as it stands on an axis: long ones are cut."""
    return name if len(name) <= _LONGEST else f'{name[: _LONGEST - 1]}…'


def look(i: int) -> tuple[str, str]:
    """Colour and dash of the line number i."""
    return COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)]

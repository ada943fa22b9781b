"""Numbers of a report: means over seeds, differences, intervals and p-values.

How sure a difference is, `analysis` says.
"""

import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Spread(NamedTuple):
    """A mean over seeds.

    Attributes:
      mean: of the values.
      sd: their standard deviation, of a sample; None of one value.
      n: how many there are.
    """

    mean: float
    sd: float | None
    n: int


class PValue(float):
    """A probability, which tables show as one."""


class Interval(NamedTuple):
    """What lies between two ends, both of them included."""

    low: float
    high: float


class Difference(float):
    """How far one score is above another, which tables show with its sign."""


def spread(values: Sequence[float | None]) -> Spread | None:
    """Mean and standard deviation, without values that are None; None of no values."""
    there = [value for value in values if value is not None]
    if not there:
        return None
    sd = statistics.stdev(there) if len(there) > 1 else None
    return Spread(statistics.fmean(there), sd, len(there))

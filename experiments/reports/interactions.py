"""Tests whether the same contrast differs between two sweeps of width, steps or task.

Comparing the two verdicts is not a test: a significant and a non-significant difference
need not differ significantly from each other (Gelman and Stern 2006). Instead, the test
is on the difference of the two differences.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from experiments.reports.tables import Interval, PValue, Table
from experiments.sweeps.analysis import LEVEL, Contrast


class Interaction(NamedTuple):
    """A contrast of the second sweep minus the same contrast of the first.

    Attributes:
      low, high: Simultaneous 95% interval (Bonferroni) over all shared contrasts.
      p: Two-sided p-value with the same adjustment.
    """

    arm: str
    base: str
    first: float
    second: float
    effect: float
    low: float
    high: float
    p: float


def interactions(
    first: Sequence[Contrast], second: Sequence[Contrast]
) -> list[Interaction]:
    """Compares the contrasts that two sweeps share.

    The errors of the sweeps are independent and may differ. The degrees of freedom are
    Welch's (1947). Contrasts without an error are left out.
    """
    from scipy import stats

    by_pair = {(x.arm, x.base): x for x in second if x.error}
    pairs = [(x, by_pair[x.arm, x.base]) for x in first if x.error and x[:2] in by_pair]
    found = []
    for one, other in pairs:
        assert one.error is not None and other.error is not None
        variances = one.error**2, other.error**2
        error = math.sqrt(sum(variances))
        shares = variances[0] ** 2 / one.freedom + variances[1] ** 2 / other.freedom
        t = stats.t(error**4 / shares)
        effect = other.effect - one.effect
        reach = float(t.isf(LEVEL / len(pairs) / 2)) * error
        p = min(1.0, 2 * len(pairs) * float(t.sf(abs(effect) / error)))
        found.append(
            Interaction(
                one.arm,
                one.base,
                one.effect,
                other.effect,
                effect,
                effect - reach,
                effect + reach,
                p,
            )
        )
    return found


def table(found: Sequence[Interaction], names: tuple[str, str]) -> Table:
    """Returns the table of interactions between two sweeps with these names."""
    rows = [
        (
            x.arm,
            x.base,
            x.first,
            x.second,
            x.effect,
            Interval(x.low, x.high),
            PValue(x.p),
        )
        for x in found
    ]
    note = (
        'Change: the difference in the second sweep minus that in the first. '
        'Intervals and p are corrected for the number of rows (Bonferroni).'
    )
    columns = ('arm', 'base', *names, 'change', '95% CI', 'p')
    return Table('interactions', 'Change of differences', columns, rows, note=note)

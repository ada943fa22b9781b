"""Means over seeds, and whether two systems of one seed differ by chance.

That is approximate randomisation (Noreen 1989; Riezler and Maxwell 2005), corrected for
the number of seeds by Holm's method (Holm 1979). Differences across seeds are those of
`analysis`.
"""

import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

TRIALS = 1000  # of approximate randomisation, for each test of a family
_ROUNDING = 1e-9  # by which equal differences of scores may differ


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


def holm(p_values: Sequence[float | None]) -> list[PValue | None]:
    """The p-values corrected for their number; those that are None do not count.

    The least is multiplied by the number of all, the next by one less, and so on; none
    becomes less than one before it, or more than 1.

    Returns:
      as many as were given, in their order.
    """
    there = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    corrected: list[PValue | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, i) in enumerate(there):
        largest = max(largest, min(1.0, p * (len(there) - rank)))
        corrected[i] = PValue(largest)
    return corrected


class Paired(NamedTuple):
    """The scores of a base and of another system on the same sentences.

    Attributes:
      base_score, score: of all sentences.
      difference: of the two.
      p: of approximate randomisation, two-sided.
    """

    base_score: float
    score: float
    difference: Difference
    p: PValue


def approximate_randomisation(
    base: Any, system: Any, score: Callable[[np.ndarray], float], family: int
) -> Paired:
    """Whether a difference of scores on the same sentences can be chance.

    If it is, the systems may change places in any sentence. In a trial they do so in
    each with probability 1/2, and p is the share of trials whose scores are at least
    as far apart as those observed, in either direction. What was observed counts as a
    trial: p = (c + 1) / (trials + 1).

    Args:
      base, system: statistics of their translations, [sentences, statistics].
      score: of the sum over sentences, [statistics].
      family: how many tests are corrected together. Each has `TRIALS` trials as many
        times, so that no family is too large for Holm's method to find anything.
    """
    base = np.asarray(base, np.float64)
    gains = np.asarray(system, np.float64) - base
    base_sum = base.sum(0)
    system_sum = base_sum + gains.sum(0)
    base_score = score(base_sum)
    system_score = score(system_sum)
    observed = system_score - base_score
    trials = TRIALS * family
    draws = np.random.default_rng(0)
    as_far = 1
    for _ in range(trials):
        swapped = draws.integers(2, size=len(base))
        moved = swapped @ gains
        difference = score(system_sum - moved) - score(base_sum + moved)
        as_far += abs(difference) >= abs(observed) - _ROUNDING
    p = PValue(as_far / (trials + 1))
    return Paired(base_score, system_score, Difference(observed), p)

"""Means over seeds, and whether a difference between two arms can be chance.

Across seeds: Welch's t-test, which asks for no equal variances (Welch 1947). Within a
seed: paired bootstrap resampling (Koehn 2004), by sacreBLEU. Several comparisons with
one base are corrected by Holm's method (Holm 1979).
"""

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

LEVEL = 0.05
RESAMPLES = 1000


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


class Difference(NamedTuple):
    """How far an arm is above its base.

    Attributes:
      value: the difference of the means.
      low, high: the ends of its 95 % interval; None where there is none.
      p: of Welch's t-test, two-sided; None where it cannot be made.
    """

    value: float
    low: float | None = None
    high: float | None = None
    p: float | None = None


def spread(values: Sequence[float]) -> Spread | None:
    """Mean and standard deviation; None of no values."""
    if not values:
        return None
    sd = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), sd, len(values))


def welch(values: Sequence[float], base: Sequence[float]) -> Difference:
    """The difference of two means over seeds, with Welch's t-test.

    Args:
      values, base: at least one each. With one value on a side, or with no spread on
        both, there is a difference and no test.
    """
    value = statistics.fmean(values) - statistics.fmean(base)
    can_test = min(len(values), len(base)) > 1
    if not can_test or len(set(values)) == len(set(base)) == 1:
        return Difference(value)
    from scipy import stats

    result: Any = stats.ttest_ind(values, base, equal_var=False)
    interval = result.confidence_interval(1 - LEVEL)
    low = float(interval.low)
    high = float(interval.high)
    return Difference(value, low, high, float(result.pvalue))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """The p-values corrected for their number; those that are None do not count."""
    there = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, i) in enumerate(there):
        largest = max(largest, min(1.0, p * (len(there) - rank)))
        corrected[i] = largest
    return corrected


class Bootstrap(NamedTuple):
    """The paired bootstrap of one system against the base, on the same sentences."""

    base_score: float
    score: float
    p: float


def paired_bootstrap(
    score: str, base: Sequence[str], outputs: Sequence[str], references: Sequence[str]
) -> Bootstrap:
    """sacreBLEU's paired bootstrap test of translations against the base's.

    Args:
      score: 'bleu' or 'chrf'.
      base, outputs: translations of the same sentences.
      references: of the sentences.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.significance import PairedTest

    metric = {'bleu': BLEU, 'chrf': CHRF}[score](references=[list(references)])
    systems: list[tuple[str, Sequence[str]]]
    systems = [('base', list(base)), ('arm', list(outputs))]
    results: Any = PairedTest(systems, {score: metric}, None, 'bs', RESAMPLES)()[1]
    (name,) = results.keys() - {'System'}
    of_base, of_arm = results[name]
    # Where no resample shows any difference, sacreBLEU gives the least p, not 1.
    p = 1.0 if list(outputs) == list(base) else of_arm.p_value
    return Bootstrap(of_base.score, of_arm.score, p)

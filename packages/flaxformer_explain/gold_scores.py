"""Scores of explanations against gold: which words an explanation should point at."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from parallel_grammar import Gold

ALIGNMENT = 'alignment'
BOOTSTRAPS = 2_000

Links = Collection[tuple[int, int]]


# ---- Scores of arrays ----------------------------------------------------------------


def alignment_error_rate(links: Links, sure: Links, possible: Links) -> float:
    """Returns 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|); 0 is best.

    Och and Ney 2003, "A systematic comparison of various statistical alignment models",
    equation 14.

    Args:
      links: A, the predicted pairs (source, target).
      sure: S, the pairs that must be found.
      possible: P, the pairs that may be found. It includes S.
    """
    found = len(set(links) & set(sure)) + len(set(links) & set(possible))
    return 1 - found / (len(links) + len(sure))


def precision_of_first(values_N: np.ndarray, relevant_N: np.ndarray) -> float:
    """Returns whether the item with the highest value is relevant.

    Returns the share of relevant items among several with the highest value.
    """
    return float(relevant_N[values_N == values_N.max()].mean())


def average_precision(values_N: np.ndarray, relevant_N: np.ndarray) -> float:
    """Returns the area under the precision-recall curve, as a sum of steps.

    It is Σ_n (R_n − R_{n−1}) P_n over the distinct values, in descending order. R and P
    are recall and precision of the items with at least this value. This is
    `sklearn.metrics.average_precision_score`.
    """
    total = relevant_N.sum()
    area = 0.0
    for value in np.unique(values_N[relevant_N]):
        chosen_N = values_N >= value
        gained = (relevant_N & (values_N == value)).sum()
        area += gained / total * relevant_N[chosen_N].mean()
    return float(area)


def chance_average_precision(items: int, relevant: int) -> float:
    """Returns the expectation of `average_precision` in a random order.

    An item at rank k is relevant with probability R / N, and then expects
    (k − 1)(R − 1) / (N − 1) relevant ones before it.
    """
    if items == 1:
        return 1.0
    density = (relevant - 1) / (items - 1)
    return math.fsum((1 + (k - 1) * density) / k for k in range(1, items + 1)) / items


def pool(values_TS: np.ndarray, rows: Sequence[int], columns: Sequence[int]):
    """Sums the columns of pieces to words, and averages the rows.

    Args:
      values_TS: A map from target pieces to source pieces.
      rows, columns: The word of each piece, from 0; -1 for a piece of no word.

    Returns:
      A map between words. A word without pieces has zeros.
    """
    of_rows = _membership(rows)
    of_columns = _membership(columns)
    sums = of_rows.T @ values_TS @ of_columns
    return sums / np.maximum(of_rows.sum(0), 1)[:, None]


def _membership(words: Sequence[int]) -> np.ndarray:
    return np.equal.outer(words, np.arange(max(words, default=-1) + 1)).astype(float)


# ---- Scores of a sentence ------------------------------------------------------------


class Maps(NamedTuple):
    """An explanation of a sentence, in words.

    Attributes:
      source: Weights of source words, [target words, source words].
      target: Weights of earlier target words, [target words, target words].
    """

    source: np.ndarray
    target: np.ndarray


def position_maps(gold: 'Gold') -> Maps:
    """Returns maps that know only positions, as a baseline.

    They point at source words near the diagonal, and at the nearest earlier words.
    """
    targets, sources = len(gold.target), len(gold.source)
    rows_T = np.arange(targets) / targets
    columns_S = np.arange(sources) / sources
    near_TS = 1 - np.abs(np.subtract.outer(rows_T, columns_S))
    return Maps(near_TS, np.tile(np.arange(targets), (targets, 1)))


class Measured(NamedTuple):
    """The key of a score.

    Attributes:
      side: The side of the words to find, source or target.
      phenomenon: `ALIGNMENT`, or one of `parallel_grammar.gold.PHENOMENA`.
      metric: `aer`, `p@1` or `ap`.
    """

    side: str
    phenomenon: str
    metric: str


class Counts(NamedTuple):
    """The contribution of a sentence: the score is Σ value / Σ weight."""

    value: float
    weight: float
    chance: float  # expectation of the value for a random map


def sentence_counts(gold: 'Gold', maps: Maps) -> dict[Measured, Counts]:
    """Scores the maps of a sentence.

    For the alignment, each target word with a sure translation ranks all source words.
    For a decision, it ranks the words that could decide: source words that don't
    translate it, or earlier target words. Leaves out cases in which any map is right.
    """
    found: dict[Measured, Counts] = {}
    for side, phenomenon, values_N, relevant_N in _rankings(gold, maps):
        share = relevant_N.mean()
        rank = chance_average_precision(len(relevant_N), relevant_N.sum())
        precision = precision_of_first(values_N, relevant_N)
        area = average_precision(values_N, relevant_N)
        _add(found, Measured(side, phenomenon, 'p@1'), precision, 1, share)
        _add(found, Measured(side, phenomenon, 'ap'), area, 1, rank)
    found[Measured('source', ALIGNMENT, 'aer')] = _alignment_counts(gold, maps)
    return found


def _add(found, key: Measured, value: float, weight: float, chance: float) -> None:
    old = found.get(key, Counts(0, 0, 0))
    new = value, weight, chance
    found[key] = Counts(*(a + b for a, b in zip(old, new, strict=True)))


def _alignment_counts(gold: 'Gold', maps: Maps) -> Counts:
    """Returns the counts of links: each target word chooses a source word."""
    chosen = maps.source.argmax(1)
    links = {(int(i), j) for j, i in enumerate(chosen)}
    size = len(links) + len(gold.sure)
    errors = alignment_error_rate(links, gold.sure, gold.possible) * size
    expected = (len(gold.sure) + len(gold.possible)) / len(gold.source)
    return Counts(errors, size, size - expected)


def _rankings(
    gold: 'Gold', maps: Maps
) -> Iterator[tuple[str, str, np.ndarray, np.ndarray]]:
    """Yields side, phenomenon, the values of the items and which are relevant."""
    sure_TS = _table(gold, gold.sure)
    for row_S, sure_S in zip(maps.source, sure_TS, strict=True):
        if sure_S.any():
            yield 'source', ALIGNMENT, row_S, sure_S
    possible_TS = _table(gold, gold.possible)
    for target, phenomenon, sources, targets in gold.decisions:
        deciding_S = np.isin(np.arange(len(gold.source)), sources)
        candidates_S = deciding_S | ~possible_TS[target]
        relevant_N = deciding_S[candidates_S]
        if relevant_N.any() and not relevant_N.all():
            row_N = maps.source[target][candidates_S]
            yield 'source', phenomenon, row_N, relevant_N
        relevant_N = np.isin(np.arange(target), targets)
        if relevant_N.any() and not relevant_N.all():
            yield 'target', phenomenon, maps.target[target][:target], relevant_N


def _table(gold: 'Gold', links: Links) -> np.ndarray:
    table_TS = np.zeros((len(gold.target), len(gold.source)), bool)
    for source, target in links:
        table_TS[target, source] = True
    return table_TS


# ---- Scores of a set -----------------------------------------------------------------


class Score(NamedTuple):
    """A score of a set.

    Attributes:
      low, high: Its 95% confidence interval over sentences.
      chance: The expectation for random maps.
      count: Number of cases; of links, for the error rate.
    """

    value: float
    low: float
    high: float
    chance: float
    count: float


def total(sentences: Sequence[Mapping[Measured, Counts]]) -> dict[Measured, Score]:
    """Scores a set of sentences, with intervals by bootstrap (Efron 1979)."""
    keys = {key: None for counts in sentences for key in counts}
    draws = np.random.default_rng(0).multinomial(
        len(sentences), [1 / len(sentences)] * len(sentences), BOOTSTRAPS
    )
    found = {}
    for key in sorted(keys):
        rows = [counts.get(key, Counts(0, 0, 0)) for counts in sentences]
        value_N, weight_N, chance_N = np.array(rows).T
        weights = draws @ weight_N
        drawn = (draws @ value_N)[weights > 0] / weights[weights > 0]
        low, high = np.quantile(drawn, [0.025, 0.975])
        weight = float(weight_N.sum())
        found[key] = Score(
            float(value_N.sum()) / weight,
            float(low),
            float(high),
            float(chance_N.sum()) / weight,
            weight,
        )
    return found

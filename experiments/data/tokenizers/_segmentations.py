"""How a word is cut into pieces, drawn: the same from the same seed, wherever it runs.

SentencePiece draws as well, but by a generator that other processes start elsewhere.
"""

import itertools
import math
import random
from collections.abc import Iterable, Mapping

Scores = Mapping[str, float]  # piece → what SentencePiece has learnt of it


def bpe_dropout(
    word: str, scores: Scores, rate: float, generator: random.Random
) -> list[str]:
    """Merges a word's characters, where each merge is left out of a step at a rate.

    Provilkov et al. 2020, algorithm 1. Of the merges that remain the one learnt first
    is made, until none remains.

    Args:
      scores: of each piece; the higher, the sooner its merge was learnt.
      rate: in 0..1; 0 gives what is encoded without sampling.
    """
    pieces = list(word)
    while True:
        merges = [
            (-scores[left + right], position)
            for position, (left, right) in enumerate(itertools.pairwise(pieces))
            if left + right in scores and generator.random() >= rate
        ]
        if not merges:
            return pieces
        _, position = min(merges)
        pieces[position : position + 2] = [pieces[position] + pieces[position + 1]]


def unigram_sample(
    word: str, scores: Scores, alpha: float, generator: random.Random
) -> list[str]:
    """Draws a segmentation x of a word with the probability P(x)^α / Σ P^α.

    Kudo 2018, equation 7 over all segmentations: sums run forward over the ends of
    pieces, and the pieces are drawn backward from the last.

    Args:
      scores: log-probability of each piece. Some cut of the word must have them all.
      alpha: α; the smaller, the more evenly all segmentations come.
    """
    totals = [0.0]  # log Σ P^α over all segmentations of the characters so far
    last_pieces: list[list[tuple[str, float]]] = [[]]
    for end in range(1, len(word) + 1):
        found = []
        for start in range(end):
            piece = word[start:end]
            if piece in scores and totals[start] > -math.inf:
                found.append((piece, totals[start] + alpha * scores[piece]))
        totals.append(_log_sum(weight for _, weight in found))
        last_pieces.append(found)
    pieces: list[str] = []
    end = len(word)
    while end:
        names, weights = zip(*last_pieces[end], strict=True)
        shares = [math.exp(weight - totals[end]) for weight in weights]
        (piece,) = generator.choices(names, shares)
        pieces.append(piece)
        end -= len(piece)
    return pieces[::-1]


def _log_sum(logs: Iterable[float]) -> float:
    """log Σ exp; −inf of nothing."""
    values = list(logs)
    largest = max(values, default=-math.inf)
    if largest == -math.inf:
        return largest
    return largest + math.log(sum(math.exp(value - largest) for value in values))

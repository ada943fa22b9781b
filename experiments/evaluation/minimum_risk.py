"""Which of sampled translations the samples are likest (Eikema and Aziz 2020, §5)."""

import collections
from collections.abc import Sequence

from experiments.metrics.base import Metric


def mean_utilities(
    texts: Sequence[str], source: str, utility: Metric
) -> dict[str, float]:
    """1/S Σ u(y, y_s) of each different text y, in their order; higher is better.

    Args:
      texts: S samples of a sentence, each of which is a reference, too, unless it is
        blank.
      source: the sentence.
      utility: u, the score of a sentence.
    """
    counts = collections.Counter(texts)
    references = [text for text in counts if text.strip()]
    pairs = [(text, reference) for text in counts for reference in references]
    scores = utility.sentence_scores(
        [text for text, _ in pairs],
        [(reference,) for _, reference in pairs],
        [source] * len(pairs),
    )
    means = dict.fromkeys(counts, 0.0)
    for (text, reference), score in zip(pairs, scores, strict=True):
        means[text] += utility.rank(score) * counts[reference] / len(texts)
    return means

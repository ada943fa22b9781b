"""Mean edit distance."""

import dataclasses

from experiments.metrics.error_rate import ErrorRate


@dataclasses.dataclass(frozen=True, kw_only=True)
class EditDistance(ErrorRate):
    """Σ edits / sentences (Levenshtein 1966), with the arguments of `error_rate`."""

    def statistics(self, outputs, references, sources):
        rows = super().statistics(outputs, references, sources)
        return [(edits, 1) for edits, _ in rows]

    def score_of(self, total):
        edits, sentences = total
        return edits / sentences

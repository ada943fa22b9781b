"""Exact match."""

import dataclasses
from typing import ClassVar

from experiments.metrics.base import Metric


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExactMatch(Metric):
    """The share of translations that equal one of their references, in percent.

    The number of spaces between words doesn't matter.
    """

    perfect: ClassVar[float | None] = 100.0

    lowercase: bool = False

    def statistics(self, outputs, references, sources):
        rows = []
        for output, known in zip(outputs, references, strict=True):
            is_match = self._words(output) in map(self._words, known)
            rows.append((int(is_match), 1))
        return rows

    def _words(self, text: str) -> list[str]:
        return (text.lower() if self.lowercase else text).split()

"""Word and character error rate."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, ClassVar

from experiments.metrics.base import Metric
from flaxformer_lite.validation import Choices


@dataclasses.dataclass(frozen=True, kw_only=True)
class ErrorRate(Metric):
    """Σ edits / Σ units of the reference, in percent; can exceed 100.

    Edits are the fewest insertions, deletions and replacements of units (Levenshtein
    1966) that yield the nearest reference, or the longest of equally near ones.

    Attributes:
      unit: Word or character. Characters include one space between words.
    """

    higher_is_better: ClassVar[bool] = False
    perfect: ClassVar[float | None] = 0.0

    unit: Annotated[str, Choices('word', 'character')] = 'word'
    lowercase: bool = False

    def statistics(self, outputs, references, sources):
        from rapidfuzz.distance import Levenshtein

        rows = []
        for output, known in zip(outputs, references, strict=True):
            units = self._units(output)
            found = []
            for reference in map(self._units, known):
                found.append((Levenshtein.distance(units, reference), -len(reference)))
            edits, length = min(found)
            rows.append((edits, -length))
        return rows

    def _units(self, text: str) -> Sequence[str]:
        words = (text.lower() if self.lowercase else text).split()
        if self.unit == 'word':
            return words
        return ' '.join(words)

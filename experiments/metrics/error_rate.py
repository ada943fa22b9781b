"""Word, character and piece error rate: edit distance (Levenshtein 1966) by length."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from experiments.errors import UserError
from experiments.metrics.base import Metric, References, Rows, Texts
from flaxformer_lite.ranges import Choices


@dataclasses.dataclass(frozen=True, kw_only=True)
class ErrorRate(Metric):
    """Σ edits / Σ units of the reference, in percent, which may be more than 100.

    Edits are the fewest insertions, deletions and replacements of a unit that lead to
    the nearest reference; of several that are as near, to the longest.

    Attributes:
      unit: what is edited. Characters are counted with one space between words.
      pieces: of unit='piece', the path of a SentencePiece model, such as a run's
        `tokenizer.model`. Only rates by the same pieces can be compared.
      lowercase: whether case does not count.

    Raises:
      ValueError: `pieces` is missing, or is given with another unit.
    """

    higher_is_better: ClassVar[bool] = False

    unit: Annotated[str, Choices('word', 'character', 'piece')] = 'word'
    pieces: str = ''
    lowercase: bool = False

    def __post_init__(self):
        super().__post_init__()
        if bool(self.pieces) != (self.unit == 'piece'):
            raise ValueError(
                f"unit={self.unit!r} with pieces={self.pieces!r}: give unit='piece' "
                'and the path of a SentencePiece model together, or neither'
            )

    def check_installed(self) -> None:
        if self.unit == 'piece' and not Path(self.pieces).is_file():
            raise UserError(
                f'evaluation.metrics: {self.name}: there is no file {self.pieces}: '
                'give the path of a SentencePiece model'
            )

    def statistics(
        self, outputs: Texts, references: References, sources: Texts
    ) -> Rows:
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
        spaced = ' '.join(words)
        if self.unit == 'character':
            return spaced
        return self._model.encode(spaced, out_type=str)

    @functools.cached_property
    def _model(self) -> Any:
        import sentencepiece

        return sentencepiece.SentencePieceProcessor(model_file=self.pieces)

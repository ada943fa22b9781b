"""Unicode characters as pieces."""

import dataclasses

from experiments.data.tokenizers._counted import CountedVocabulary


@dataclasses.dataclass(frozen=True)
class Characters(CountedVocabulary):
    """`characters(min_count=2)`: each character of the NFC text is a piece."""

    def split(self, text):
        return list(text)

    def joined(self, units):
        return ''.join(units)

    def pieces(self, ids):
        return [piece.replace(' ', '▁') for piece in super().pieces(ids)]

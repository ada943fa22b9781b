"""Words of tokenized text as pieces."""

import dataclasses

from experiments.data.tokenizers._counted import CountedVocabulary


@dataclasses.dataclass(frozen=True)
class Words(CountedVocabulary):
    """`words(min_count=2)`: text between spaces is a piece, with its punctuation."""

    def split(self, text):
        return text.split()

    def joined(self, units):
        return ' '.join(units)

"""Words between spaces: `words(min_count=2)`, for text that is tokenized already."""

import dataclasses

from experiments.data.tokenizers._counted import Counted


@dataclasses.dataclass(frozen=True)
class Words(Counted):
    """Each word is a piece: text between spaces, including punctuation."""

    def split(self, text):
        return text.split()

    def joined(self, units):
        return ' '.join(units)

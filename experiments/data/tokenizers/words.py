"""Words between spaces: `words(min_count=2)`, for text that is tokenised already."""

import dataclasses

from experiments.data.tokenizers._counted import Counted


@dataclasses.dataclass(frozen=True)
class Words(Counted):
    """Each word is a piece: what stands between spaces, signs that touch it included.

    Attributes:
      vocab_size: ids at most, the four special ones included.
      min_count: rarer words are unknown.
    """

    def split(self, text):
        return text.split()

    def joined(self, units):
        return ' '.join(units)

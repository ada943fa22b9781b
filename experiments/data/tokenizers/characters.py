"""Unicode's characters: `characters(min_count=2)`."""

import dataclasses

from experiments.data.tokenizers._counted import Counted


@dataclasses.dataclass(frozen=True)
class Characters(Counted):
    """Each character of the NFC text is a piece; those unseen in training are unknown.

    Attributes:
      vocab_size: ids at most, the four special ones included.
      min_count: rarer characters are unknown.
    """

    def split(self, text):
        return list(text)

    def joined(self, units):
        return ''.join(units)

    def pieces(self, ids):
        """How each id is written; a space is ▁."""
        return [piece.replace(' ', '▁') for piece in super().pieces(ids)]

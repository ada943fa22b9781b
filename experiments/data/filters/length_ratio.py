"""Filter of pairs with very different lengths."""

import dataclasses
from typing import Annotated

from experiments.data.filters.base import Filter
from flaxformer_lite.validation import Choices, Range


@dataclasses.dataclass(frozen=True)
class LengthRatio(Filter):
    """Removes pairs whose longer side is more than `most` times as long as the shorter.

    With `unit='words'`, the same as Moses' `clean-corpus-n`. Keeps pairs with a blank
    side.
    """

    most: Annotated[float, Range(at_least=1)] = 3.0
    unit: Annotated[str, Choices('characters', 'words')] = 'characters'

    def keeps(self, source, target):
        sides = (source.split(), target.split())
        if self.unit == 'characters':
            sides = [' '.join(words) for words in sides]
        shorter, longer = sorted(map(len, sides))
        return shorter == 0 or longer <= self.most * shorter

"""Pairs of which one side is much longer, as Moses' `clean-corpus-n` has them."""

import dataclasses
from typing import Annotated

from experiments.data.filters.base import Filter
from flaxformer_lite.ranges import Choices, Range


@dataclasses.dataclass(frozen=True)
class LengthRatio(Filter):
    """Leaves out a pair whose longer side is more than `most` times the shorter.

    A blank side is none of its business.

    Attributes:
      most: the largest ratio that is kept.
      unit: what lengths are counted in; words are what white space parts.
    """

    most: Annotated[float, Range(at_least=1)] = 3.0
    unit: Annotated[str, Choices('characters', 'words')] = 'characters'

    def keeps(self, source, target):
        sides = (source.split(), target.split())
        if self.unit == 'characters':
            sides = [' '.join(words) for words in sides]
        shorter, longer = sorted(map(len, sides))
        return shorter == 0 or longer <= self.most * shorter

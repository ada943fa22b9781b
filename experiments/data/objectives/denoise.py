"""BART's objective (Lewis et al., BART, 2020): the text of a text with noise."""

import dataclasses
import math
from typing import Annotated, ClassVar

import numpy as np

from experiments.data.objectives.base import Objective
from flaxformer_lite.ranges import Range


@dataclasses.dataclass(frozen=True)
class Denoise(Objective):
    """One `<mask>` stands for each span of ids; the target is the text (§2.2).

    The lengths of spans are drawn from a Poisson distribution until they sum up to
    r = ⌈ratio · n⌉, the last of them cut; at length 0 a mask is inserted, and of such
    there are no more than leave at most r masks. All places are equally likely.

    Attributes:
      ratio: the share of a text's ids that are masked.
      mean_span: of the Poisson distribution.
    """

    needs: ClassVar[str] = '<mask>'
    ratio: Annotated[float, Range(above=0, at_most=1)] = 0.3
    mean_span: Annotated[float, Range(at_least=0.1)] = 3.0

    def example(self, row, rng):
        masked = math.ceil(self.ratio * len(row))
        spans = rng.permutation(self._spans(masked, rng)).tolist()
        masks = len(spans)
        order = rng.permutation(len(row) - masked + masks)
        source = []
        at = 0
        for number in order.tolist():
            if number < masks:
                source.append(self.marks[0])
                at += spans.pop()
            else:
                source.append(row[at])
                at += 1
        return source, row

    def _spans(self, masked: int, rng: np.random.Generator) -> list[int]:
        lengths = []
        left = masked
        while left:
            lengths.append(min(int(rng.poisson(self.mean_span)), left))
            left -= lengths[-1]
        spans = [length for length in lengths if length]
        empty = min(len(lengths), masked) - len(spans)
        return spans + [0] * empty

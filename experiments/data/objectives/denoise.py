"""BART's denoising objective (Lewis et al., BART, 2020)."""

import math
from typing import Annotated, ClassVar

import numpy as np

from experiments.data.objectives.base import Objective
from flaxformer_lite.validation import Range


class Denoise(Objective):
    """Replaces each span of ids by one `<mask>`; the target is the text (§2.2).

    Span lengths are Poisson-distributed and sum to r = ⌈ratio · n⌉, with the last one
    cut. A span of length 0 inserts a mask. There are at most r masks, at equally likely
    places.
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
        remaining = masked
        while remaining:
            lengths.append(min(int(rng.poisson(self.mean_span)), remaining))
            remaining -= lengths[-1]
        spans = [length for length in lengths if length]
        empty = min(len(lengths), masked) - len(spans)
        return spans + [0] * empty

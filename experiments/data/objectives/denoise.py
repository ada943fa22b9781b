"""BART's objective (Lewis et al., BART, 2020): the text of a text with noise."""

import dataclasses
import functools
import math
from typing import Annotated, ClassVar

import numpy as np

from experiments.data.objectives.base import Objective
from flaxformer_lite.ranges import Positive, Range


@dataclasses.dataclass(frozen=True)
class Denoise(Objective):
    """One `<mask>` stands for each span of ids; the target is the text (§2.2).

    The lengths of spans are drawn from a Poisson distribution until they sum up to
    r = ⌈ratio · n⌉, the last of them cut; at length 0 a mask is inserted, and of such
    there are no more than leave at most r masks. All places are equally likely.

    Attributes:
      ratio: the share of a text's ids that are masked.
      mean_span: of the Poisson distribution.
      permute_sentences: whether sentences, as `.`, `!` and `?` end them, are put in a
        random order before.
    """

    needs: ClassVar[str] = '<mask>'
    ratio: Annotated[float, Range(above=0, at_most=1)] = 0.3
    mean_span: Positive = 3.0
    permute_sentences: bool = False

    def example(self, row, rng):
        text = self._permuted(row, rng) if self.permute_sentences else row
        masked = math.ceil(self.ratio * len(text))
        spans = rng.permutation(self._spans(masked, rng))
        count = len(text) - masked + len(spans)
        is_mask = rng.permutation(np.arange(count) < len(spans))
        widths = np.ones(count, int)
        widths[is_mask] = spans
        places = widths.cumsum() - widths  # a mask without ids may be behind the last
        source = text[np.minimum(places, len(text) - 1)]
        source[is_mask] = self.marks[0]
        return source, row

    def _spans(self, masked: int, rng: np.random.Generator) -> np.ndarray:
        ends = np.zeros(1, int)
        while ends[-1] < masked:
            drawn = rng.poisson(self.mean_span, masked)
            ends = np.append(ends, ends[-1] + drawn.cumsum())
        last = np.searchsorted(ends, masked)
        lengths = np.diff(np.minimum(ends[: last + 1], masked))
        spans = lengths[lengths > 0]
        empty = min(len(lengths), masked) - len(spans)
        return np.append(spans, np.zeros(empty, int))

    @functools.cached_property
    def _ends_sentence(self) -> np.ndarray:
        return np.array([piece.endswith(('.', '!', '?')) for piece in self.pieces])

    def _permuted(self, row: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        ends = np.flatnonzero(self._ends_sentence[row[:-1]]) + 1
        sentences = np.split(row, ends)
        order = rng.permutation(len(sentences))
        return np.concatenate([sentences[i] for i in order])

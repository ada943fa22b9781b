"""Beam search (paper §6.1) with GNMT's length penalty."""

from typing import Annotated

from flaxformer_lite.decoding.search import length_penalty
from flaxformer_lite.decoding.strategies.base import Strategy, flat
from flaxformer_lite.ops.top_k import top_k_indices
from flaxformer_lite.ranges import Range


class Beam(Strategy):
    """The continuations of the highest log-probability.

    The score of a finished hypothesis is its log-probability / ((5 + L) / 6)^α (Wu et
    al. 2016, equation 14). A sentence stops when no live hypothesis can still come
    among its `n_best`, or at its limit.

    Attributes:
      beams: live hypotheses, and results, of each sentence.
      alpha: α; 0 for no penalty.
    """

    beams: Annotated[int, Range(at_least=1, at_most=10_000)] = 4
    # Above, a long sentence's penalty is more than a float32 can be.
    alpha: Annotated[float, Range(at_least=0, at_most=10)] = 0.6

    @property
    def hypotheses(self):
        return self.beams

    def choose(self, state, logits_BNV, total_BNV):
        # At most N of these 2 N end, so that N can go on.
        return top_k_indices(flat(total_BNV), 2 * self.beams)

    def length_penalty(self, length):
        return length_penalty(length, self.alpha)

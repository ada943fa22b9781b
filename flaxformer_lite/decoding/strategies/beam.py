"""Beam search (paper §6.1) with GNMT's length penalty."""

from typing import Annotated

from flaxformer_lite.decoding.search import length_penalty
from flaxformer_lite.decoding.strategies.base import Strategy, flat
from flaxformer_lite.ops.top_k import top_k_indices
from flaxformer_lite.validation import Range


class BeamSearch(Strategy):
    """Beam search: keeps the continuations with the highest log-probability.

    A finished hypothesis of L tokens scores log-probability / ((5 + L) / 6)^α (Wu et
    al. 2016, equation 14). A sentence stops at its limit, or when no live hypothesis
    can enter its `n_best`. To score results otherwise, override `score`.

    Use it for translation. It is the default, as in the paper (§6.1).

    Attributes:
      beams: Live hypotheses and results per sentence.
      alpha: α; 0 disables the penalty.

    Examples:
      >>> import flaxformer_lite as fl
      >>> strategy = fl.decoding.BeamSearch(beams=8, alpha=1.0)
    """

    beams: Annotated[int, Range(at_least=1, at_most=10_000)] = 4
    # A larger α overflows float32 for long sentences.
    alpha: Annotated[float, Range(at_least=0, at_most=10)] = 0.6

    @property
    def hypotheses(self):
        return self.beams

    def choose(self, state, logits_BNV, total_BNV):
        # At most N of the 2 N candidates end, so N can stay live.
        return top_k_indices(flat(total_BNV), 2 * self.beams)

    def score(self, log_p, length):
        return log_p / length_penalty(length, self.alpha)

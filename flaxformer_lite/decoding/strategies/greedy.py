"""Greedy decoding."""

from flaxformer_lite.decoding.strategies.base import Strategy, flat
from flaxformer_lite.ops.top_k import top_k_indices


class Greedy(Strategy):
    """The most likely token at each step.

    Use it if speed matters more than quality.

    Examples:
      >>> import flaxformer_lite as fl
      >>> strategy = fl.decoding.Greedy()
    """

    def choose(self, state, logits_BNV, total_BNV):
        return top_k_indices(flat(logits_BNV), 1)

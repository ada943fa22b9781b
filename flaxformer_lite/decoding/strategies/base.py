"""Base class of decoding strategies."""

from typing import ClassVar

import jax

from flaxformer_lite.decoding.result import DecodeResult
from flaxformer_lite.decoding.search import DecodeInputs, Search, SearchState
from flaxformer_lite.validation import FrozenDataclass


class Strategy(FrozenDataclass):
    """A search that keeps N hypotheses per sentence and chooses their continuations.

    Override `choose`, or `__call__` for a different loop. To change only how results
    are ranked, override `score` of `BeamSearch`. Annotated attributes are arguments:

        class WordReward(fl.decoding.BeamSearch):
            reward: float = 0.2

            def score(self, log_p, length):
                return log_p + self.reward * length

    Attributes:
      draws: Whether the strategy samples with PRNG keys.
    """

    draws: ClassVar[bool] = False

    @property
    def hypotheses(self) -> int:
        """N, the hypotheses per sentence."""
        return 1

    @property
    def hypothesis_groups(self) -> int:
        """Number of independently searched groups."""
        return 1

    def choose(
        self, state: SearchState, logits_BNV: jax.Array, total_BNV: jax.Array
    ) -> jax.Array:
        """Chooses M ≥ N of each sentence's N · V continuations, best first.

        Continuations with the end token become results. The first N others stay live.
        With groups, the first M / groups belong to the first group, and so on.

        Args:
          state: To sample, fold the step into `state.keys_B`, one key per sentence.
          logits_BNV: float32 logits of the next token; −inf for disallowed tokens.
          total_BNV: Log-probability of each continued hypothesis; −inf if disallowed.

        Returns:
          int32 BM, hypothesis · V + token.
        """
        raise NotImplementedError(
            f'{type(self).__name__}.choose(state, logits_BNV, total_BNV) is missing'
        )

    def score(self, log_p: jax.Array, length: jax.Array) -> jax.Array:
        """Returns the scores of results, by which they are ranked.

        A search stops when no longer hypothesis can score better, so a higher
        log-probability must not score lower.

        Args:
          log_p: float32 log-probabilities. They and `length` broadcast.
          length: int32 numbers of tokens, end token included.
        """
        return log_p

    def __call__(self, inputs: DecodeInputs, n_best: int = 1) -> DecodeResult:
        """Runs the search.

        Args:
          n_best: Number of results that must be final; others may not be the best.

        Raises:
          ValueError: n_best is not in 1 … N.
        """
        return self.search(inputs, n_best)()

    def search(self, inputs: DecodeInputs, n_best: int = 1) -> Search:
        """Returns the search that a call runs; its `trace` records each step."""
        if not 1 <= n_best <= self.hypotheses:
            raise ValueError(
                f'n_best must be from 1 to the {self.hypotheses} hypotheses of a '
                f'sentence, not {n_best}'
            )
        return Search(
            inputs,
            self.choose,
            self.score,
            self.hypotheses,
            n_best,
            self.hypothesis_groups,
        )


def flat(x_BNV: jax.Array) -> jax.Array:
    """Joins the hypothesis and vocabulary axes: (B, N · V)."""
    return x_BNV.reshape(len(x_BNV), -1)

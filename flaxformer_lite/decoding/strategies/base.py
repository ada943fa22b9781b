"""What strategies have in common: at each step they choose continuations."""

import dataclasses
from typing import Any, ClassVar, dataclass_transform

import jax

from flaxformer_lite.decoding.result import DecodeResult
from flaxformer_lite.decoding.search import DecodeInputs, Search, SearchState
from flaxformer_lite.ranges import Checked


@dataclass_transform(frozen_default=True)
@dataclasses.dataclass(frozen=True)
class Strategy(Checked):
    """A search that keeps N hypotheses of each sentence and chooses how they go on.

    A variant overrides `choose`; one that needs another loop, all of `__call__`.
    Annotated attributes are its arguments, as those of a frozen dataclass: equal
    arguments make equal strategies, for which a program is compiled once.

    Attributes:
      draws: whether what it finds depends on a key. Its results are then samples, of
        which others are drawn with other keys.
    """

    draws: ClassVar[bool] = False

    def __init_subclass__(cls, **settings: Any):
        super().__init_subclass__(**settings)
        dataclasses.dataclass(frozen=True)(cls)

    @property
    def hypotheses(self) -> int:
        """N, of each sentence."""
        return 1

    @property
    def hypothesis_groups(self) -> int:
        """So many groups of hypotheses, side by side, search each by themselves."""
        return 1

    @property
    def utility_spec(self) -> str:
        """The metric of texts by which samples are ordered; '' for their scores."""
        return ''

    def drawn(self, n_best: int) -> int:
        """How often a sentence is decoded, with a key each, for so many results."""
        return n_best if self.draws else 1

    def choose(
        self, state: SearchState, logits_BNV: jax.Array, total_BNV: jax.Array
    ) -> jax.Array:
        """M ≥ N of the N · V continuations of each sentence, the best first.

        Of these, what ends is a result, and the first N that do not end go on. Where
        there are groups, the first M / groups are those of the first group, and so on.

        Args:
          state: of the search. Where the strategy draws, `state.keys_B` has a key of
            each sentence, into which the step is to be folded.
          logits_BNV: float32, of the next token; −inf for one that may not come.
          total_BNV: the log-probability of all tokens with it; −inf likewise.

        Returns:
          int32 BM, hypothesis · V + token.
        """
        raise NotImplementedError

    def length_penalty(self, length: jax.Array) -> jax.Array | float:
        """What the log-probability of a result of so many tokens is divided by.

        It must not fall as the length grows.
        """
        return 1.0

    def __call__(self, inputs: DecodeInputs, n_best: int = 1) -> DecodeResult:
        """Runs the search.

        Args:
          inputs: what is decoded.
          n_best: so many of the N results are final. A longer search might have found
            better ones than those after them.

        Raises:
          ValueError: n_best is not in 1 … N.
        """
        return self.search(inputs, n_best)()

    def search(self, inputs: DecodeInputs, n_best: int = 1) -> Search:
        """The search that a call runs, whose steps `trace` tells.

        Args:
          inputs, n_best: as of a call.

        Raises:
          ValueError: n_best is not in 1 … N.
        """
        if not 1 <= n_best <= self.hypotheses:
            raise ValueError(
                f'n_best must be from 1 to the {self.hypotheses} hypotheses of a '
                f'sentence, not {n_best}'
            )
        return Search(
            inputs,
            self.choose,
            self.length_penalty,
            self.hypotheses,
            n_best,
            self.hypothesis_groups,
        )


def flat(x_BNV: jax.Array) -> jax.Array:
    """All continuations of a sentence in one row."""
    return x_BNV.reshape(len(x_BNV), -1)

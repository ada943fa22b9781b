"""What processors have in common: logits to logits, by the tokens before them."""

import dataclasses
from typing import Any, dataclass_transform

import jax

from flaxformer_lite.ranges import Checked
from flaxformer_lite.special_tokens import SpecialTokens


@dataclass_transform(frozen_default=True)
@dataclasses.dataclass(frozen=True)
class Processor(Checked):
    """Changes what tokens may come next, or how likely they are.

    What it adds to a logit it adds to the log-probability of the token: scores stay
    those among all tokens, as the model has them. No logit may exceed log Σ exp(z) of
    the model's logits z, which is probability 1. A search scores a token that exceeds
    it as certain. At the limit of a sentence, where
    only the end token may come, it is not asked.

    Annotated attributes are its arguments, as those of a frozen dataclass: a list among
    them is written as a tuple.
    """

    def __init_subclass__(cls, **settings: Any):
        super().__init_subclass__(**settings)
        dataclasses.dataclass(frozen=True)(cls)

    def __call__(
        self, logits_BNV: jax.Array, tokens_BNL: jax.Array, step: jax.Array, end: int
    ) -> jax.Array:
        """The logits of the next token, BNV; −inf for one that may not come.

        Args:
          logits_BNV: float32.
          tokens_BNL: int32, of each hypothesis; the first `step` of them are chosen.
          step: int32, the position of the next token, from 0 on.
          end: the end token.
        """
        raise NotImplementedError

    def check(
        self, vocab_size: int, special_tokens: SpecialTokens, max_length: int
    ) -> None:
        """Refuses a vocabulary or a length that the arguments don't fit.

        Args:
          vocab_size: number of tokens.
          special_tokens: the tokens that are not text.
          max_length: the most tokens of the shortest target, end token included.

        Raises:
          ValueError: names the argument.
        """

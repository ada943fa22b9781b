"""Base class of logits processors."""

import jax

from flaxformer_lite.special_tokens import SpecialTokens
from flaxformer_lite.validation import FrozenDataclass


class Processor(FrozenDataclass):
    """Changes the logits of the next token, given the tokens before it.

    Scores are not renormalized: a changed logit changes the token's log-probability by
    the same amount. No logit may exceed log Σ exp(z) of the model's logits z. At the
    length limit, only the end token may follow, with the model's logit.

    Annotated attributes are arguments. Use a tuple for a list:

        class Banned(fl.decoding.Processor):
            token: int

            def __call__(self, logits_BNV, tokens_BNL, step, eos):
                return logits_BNV.at[:, :, self.token].set(-jnp.inf)
    """

    def __call__(
        self, logits_BNV: jax.Array, tokens_BNL: jax.Array, step: jax.Array, eos: int
    ) -> jax.Array:
        """Returns the logits of the next token, BNV; −inf for disallowed tokens.

        Args:
          logits_BNV: float32.
          tokens_BNL: int32. Tokens from position `step` on are undefined.
          step: int32, position of the next token, from 0.
        """
        raise NotImplementedError

    def check(
        self, vocab_size: int, special_tokens: SpecialTokens, max_length: int
    ) -> None:
        """Raises ValueError if the arguments don't fit the vocabulary or the length.

        Args:
          max_length: Limit of the shortest target, including the end token.
        """

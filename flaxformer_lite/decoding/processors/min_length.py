"""Minimum target length: `min_length(length=5)`."""

import jax.numpy as jnp

from flaxformer_lite.decoding.processors.base import Processor
from flaxformer_lite.validation import Size


class MinLength(Processor):
    """Disallows the end token before `length` other tokens.

    Attributes:
      length: minimum number of tokens before the end token.
    """

    length: Size

    def __call__(self, logits_BNV, tokens_BNL, step, eos):
        is_eos_V = jnp.arange(logits_BNV.shape[2]) == eos
        is_early_V = is_eos_V & (step < self.length)
        return jnp.where(is_early_V[None, None], -jnp.inf, logits_BNV)

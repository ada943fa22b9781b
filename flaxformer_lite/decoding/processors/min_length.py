"""Minimum target length: `min_length(length=5)`."""

import jax.numpy as jnp

from flaxformer_lite.decoding.processors.base import Processor
from flaxformer_lite.validation import Size


class MinLength(Processor):
    """Disallows the end token before `length` other tokens.

    Examples:
      >>> step, tokens_BNL = jnp.array(1), jnp.zeros((1, 1, 4), int)
      >>> print(MinLength(length=2)(jnp.zeros((1, 1, 3)), tokens_BNL, step, eos=1))
      [[[  0. -inf   0.]]]
    """

    length: Size

    def __call__(self, logits_BNV, tokens_BNL, step, eos):
        is_eos_V = jnp.arange(logits_BNV.shape[2]) == eos
        is_early_V = is_eos_V & (step < self.length)
        return jnp.where(is_early_V[None, None], -jnp.inf, logits_BNV)

"""Sampling from all tokens, the top k, or the nucleus."""

from typing import Annotated

import jax
import jax.numpy as jnp

from flaxformer_lite.decoding.filtering import filter_logits
from flaxformer_lite.decoding.strategies.base import Strategy
from flaxformer_lite.validation import Range


class Sample(Strategy):
    """Samples each token from the logits that `filter_logits` returns.

    Use it for varied texts. It needs the `key` of `fl.generate`.

    Attributes:
      temperature, top_k, top_p: As in `filter_logits`.

    Examples:
      >>> import flaxformer_lite as fl
      >>> strategy = fl.decoding.Sample(temperature=0.8, top_p=0.9)
    """

    draws = True

    # A smaller temperature overflows float32; 0 would be greedy decoding.
    temperature: Annotated[float, Range(at_least=1e-6)] = 1.0
    top_k: Annotated[int, Range(at_least=0)] = 0
    top_p: Annotated[float, Range(above=0, at_most=1)] = 1.0

    def choose(self, state, logits_BNV, total_BNV):
        fold_in = jax.vmap(jax.random.fold_in, (0, None))
        step_keys_B = fold_in(state.keys_B, state.beam.step)
        logits_BV = filter_logits(
            logits_BNV[:, 0], self.temperature, self.top_k, self.top_p
        )
        drawn_B = jax.vmap(jax.random.categorical)(step_keys_B, logits_BV)
        return drawn_B[:, None].astype(jnp.int32)

"""Forbids repeated n-grams: `no_repeat_ngram(size=3)`."""

import jax
import jax.numpy as jnp

from flaxformer_lite.decoding.processors.base import Processor
from flaxformer_lite.validation import Size


class NoRepeatNgram(Processor):
    """Disallows tokens that would repeat an n-gram (Paulus et al. 2018).

    Attributes:
      size: n.

    Examples:
      >>> tokens_BNL, step = jnp.array([[[2, 3, 2, 0]]]), jnp.array(3)
      >>> print(NoRepeatNgram(size=2)(jnp.zeros((1, 1, 4)), tokens_BNL, step, eos=1))
      [[[  0.   0.   0. -inf]]]
    """

    size: Size = 3

    def __call__(self, logits_BNV, tokens_BNL, step, eos):
        prefix_length = self.size - 1
        length = tokens_BNL.shape[2]
        starts = length - prefix_length  # of the n-grams that fit
        if starts < 1:
            return logits_BNV
        # Find the n-grams whose first n − 1 tokens match the current ones.
        same_BNS = jnp.arange(starts)[None, None] + prefix_length < step
        for i in range(prefix_length):
            now_BN1 = jax.lax.dynamic_slice_in_dim(
                tokens_BNL, step - prefix_length + i, 1, axis=2
            )
            same_BNS &= tokens_BNL[:, :, i : i + starts] == now_BN1
        last_BNS = tokens_BNL[:, :, prefix_length:]
        same_BNS = jnp.broadcast_to(same_BNS, last_BNS.shape)
        repeats = jax.vmap(
            jax.vmap(lambda repeats_V, t, same: repeats_V.at[t].max(same))
        )
        repeats_BNV = repeats(jnp.zeros(logits_BNV.shape, bool), last_BNS, same_BNS)
        return jnp.where(repeats_BNV, -jnp.inf, logits_BNV)

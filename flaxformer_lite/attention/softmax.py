"""Scaled dot-product attention (paper §3.2.1, equation 1) and the knobs that others gave it."""

from typing import Annotated

import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.attention.base import Attention, dot, masked_softmax
from flaxformer_lite.dropout import Dropout
from flaxformer_lite.ranges import NotNegative, Range, Rate


class Softmax(Attention):
    """softmax(Q Kᵀ · scale / T) V, the softmax over keys and in float32.

    Attributes:
      scale: True for 1 / √d_k, False for 1, or a number.
      temperature: T; 0 gives all weight to the likeliest keys, ties evenly.
      cap: scores s become cap · tanh(s / cap) (Gemma Team 2024); 0 for none.
      dropout: of the weights, each by itself; the paper has none.
    """

    scale: Annotated[bool | float, Range(at_least=0)] = True
    temperature: NotNegative = 1.0
    cap: NotNegative = 0.0
    dropout: Rate = 0.0

    def scores(self, q_BTHK, kv):
        named = {True: q_BTHK.shape[-1] ** -0.5, False: 1.0}
        scale = named[self.scale] if isinstance(self.scale, bool) else self.scale
        s_BHTS = dot(q_BTHK * scale, kv.key_BGKS)
        return self.cap * jnp.tanh(s_BHTS / self.cap) if self.cap else s_BHTS

    @nn.compact
    def weights(self, s_BHTS, mask_BHTS):
        if self.temperature:
            w_BHTS = masked_softmax(s_BHTS / self.temperature, mask_BHTS)
        else:
            s_BHTS = jnp.where(mask_BHTS, s_BHTS, -jnp.inf)
            top_BHTS = mask_BHTS & (s_BHTS == s_BHTS.max(-1, keepdims=True))
            w_BHTS = top_BHTS / jnp.maximum(top_BHTS.sum(-1, keepdims=True), 1)
        return Dropout(self.dropout)(w_BHTS)

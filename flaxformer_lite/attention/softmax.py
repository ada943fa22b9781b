"""Scaled dot-product attention (paper §3.2.1, equation 1), and variations of it."""

from typing import Annotated

import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.attention.base import Attention, dot_products
from flaxformer_lite.layers.dropout import Dropout
from flaxformer_lite.ops.masked_softmax import masked_softmax
from flaxformer_lite.ranges import NotNegative, Range, Rate


class Softmax(Attention):
    """softmax(Q Kᵀ · scale / T) V, the softmax over keys and in float32.

    Attributes:
      scale: True for 1 / √d_k, False for 1, or a number.
      temperature: T; 0 gives all weight to the keys of the highest score, ties evenly.
      cap: scores s become cap · tanh(s / cap) (Gemma Team 2024); 0 leaves them.
      dropout: of the weights, each by itself; the paper has none.
    """

    scale: Annotated[bool | float, Range(at_least=0)] = True
    temperature: NotNegative = 1.0
    cap: NotNegative = 0.0
    dropout: Rate = 0.0

    def scores(self, q_BTHK, kv):
        scores_BHTS = dot_products(q_BTHK * self._scale(q_BTHK.shape[-1]), kv.key_BGKS)
        if self.cap:
            scores_BHTS = self.cap * jnp.tanh(scores_BHTS / self.cap)
        return scores_BHTS

    def _scale(self, d_k):
        if self.scale is True:
            return d_k**-0.5
        if self.scale is False:
            return 1.0
        return self.scale

    @nn.compact
    def weights(self, scores_BHTS, mask_BHTS):
        if self.temperature:
            weights_BHTS = masked_softmax(scores_BHTS / self.temperature, mask_BHTS)
        else:
            weights_BHTS = _one_hot_of_highest(scores_BHTS, mask_BHTS)
        return Dropout(self.dropout)(weights_BHTS)


def _one_hot_of_highest(scores_BHTS, mask_BHTS):
    scores_BHTS = jnp.where(mask_BHTS, scores_BHTS, -jnp.inf)
    is_highest = mask_BHTS & (scores_BHTS == scores_BHTS.max(-1, keepdims=True))
    return is_highest / jnp.maximum(is_highest.sum(-1, keepdims=True), 1)

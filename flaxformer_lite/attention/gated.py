"""Softmax attention with gated heads (Qiu et al. 2025, "Gated Attention for LLMs")."""

from typing import Annotated

import jax
from flax import linen as nn

from flaxformer_lite.attention.base import ScaledDotProduct
from flaxformer_lite.validation import Choices


class GatedAttention(ScaledDotProduct):
    """Softmax attention whose heads are gated by the input: y ⊙ σ(x W_g).

    x is the vector from which the query is projected, and y the output of all heads.
    Source: gate G1.

    To gate another attention, derive from both classes:

        class GatedFlash(GatedAttention, FlashAttention): ...

    Attributes:
      gates: 'elements' for one gate per feature of each head, 'heads' for one per head.
    """

    gates: Annotated[str, Choices('elements', 'heads')] = 'elements'

    @nn.compact
    def transform_heads(self, y_BTHU, x_BTD, dense):
        *_, num_heads, d_v = y_BTHU.shape
        per_head = d_v if self.gates == 'elements' else 1
        features = num_heads, per_head
        gate = dense.copy(features=features, input_axes=1, bias=False, name='head_gate')
        return y_BTHU * jax.nn.sigmoid(gate(x_BTD))

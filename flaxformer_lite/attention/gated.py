"""Softmax attention with gated heads (Qiu et al. 2025, "Gated Attention for LLMs")."""

from typing import Annotated

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.attention.base import ScaledDotProduct
from flaxformer_lite.init.base import Init
from flaxformer_lite.validation import Choices


class Gated(ScaledDotProduct):
    """Softmax attention whose heads are gated by the input: y ⊙ σ(x W_g).

    x is the vector from which the query is projected, and y the output of all heads.

    To gate another attention, derive from both classes:

        class GatedFlash(Gated, Flash): ...

    Source: Qiu et al. 2025, gate G1. Use it to let a head output nothing.

    Attributes:
      gates: 'elements' for one gate per feature of each head, 'heads' for one per head.
      start_at_one: Whether gates are 2 σ(x W_g), with W_g initialized to 0. The initial
        function is then that of plain attention. In the source, gates are about ½.

    Examples:
      >>> import flaxformer_lite as fl
      >>> attention = fl.attention.Gated(gates='heads')
      >>> model = fl.Transformer(vocab_size=100, attention=attention)
    """

    gates: Annotated[str, Choices('elements', 'heads')] = 'elements'
    start_at_one: bool = False

    @nn.compact
    def transform_heads(self, y_BTHU, x_BTD, dense):
        *_, num_heads, d_v = y_BTHU.shape
        per_head = d_v if self.gates == 'elements' else 1
        scale, init = 1.0, dense.kernel_init
        if self.start_at_one:
            scale, init = 2.0, _Zeros()
        gate = dense.copy(
            features=(num_heads, per_head),
            input_axes=1,
            bias=False,
            kernel_init=init,
            name='head_gate',
        )
        return y_BTHU * (scale * jax.nn.sigmoid(gate(x_BTD)))


class _Zeros(Init):
    def matrix(self, key, fan_in, fan_out, name):
        return jnp.zeros((fan_in, fan_out))

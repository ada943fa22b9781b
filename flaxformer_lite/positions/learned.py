"""Learned position embeddings (§3.5; Table 3, row E)."""

from typing import Annotated

import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.positions.base import Positions
from flaxformer_lite.validation import Range, Size


class Learned(Positions):
    """Embeddings x + P[pos + offset], P of shape (max_length + offset, d_model).

    Positions beyond the table give NaN.

    Sources: Vaswani et al. 2017, §3.5; Gehring et al. 2017. Use it if lengths have a
    limit, as in BERT and BART.

    Attributes:
      max_length: Maximum number of tokens per sentence.
      offset: Number of unused rows before the row of the first token. BART uses 2.

    Examples:
      >>> import flaxformer_lite as fl
      >>> positions = fl.positions.Learned(max_length=128)
      >>> model = fl.Transformer(vocab_size=100, positions=positions)
    """

    max_length: Size = 1024
    offset: Annotated[int, Range(at_least=0, at_most=2**20)] = 0

    @nn.compact
    def embed(self, x_BTD, positions_BT):
        d_model = x_BTD.shape[-1]
        init = nn.initializers.normal(d_model**-0.5)
        table = self.param('table', init, (self.max_length + self.offset, d_model))
        index_BT = positions_BT + self.offset
        rows = jnp.take(table, index_BT, axis=0, mode='fill', fill_value=jnp.nan)
        return x_BTD + rows

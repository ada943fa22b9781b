"""Multi-head attention (paper §3.2.2): project, rotate, attend, merge."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from flaxformer_lite.dense import Dense
from flaxformer_lite.shapes import KV


class MultiHead(nn.Module):
    """Concat(head_1, …, head_h) W^O, head_i = Attention(x W_i^Q, y W_i^K, y W_i^V), without biases.

    Keys and values are an argument: `keys_values` makes them of the same tokens (self-attention)
    or of the encoder's (cross-attention, once a sentence), or a decoder's cache holds them.

    Attributes:
      d_model: the output's width.
      num_heads: h.
      d_k: the width of one head's queries and keys; free of d_v and of d_model / h.
      d_v: the width of one head's values.
      attend: what happens between heads, a module of `attention/`.
      positions: a module of `positions/`; its `rotate` is used here.
      dtype: of the operands; keys and values are kept in it.
    """

    d_model: int
    num_heads: int
    d_k: int
    d_v: int
    attend: nn.Module
    positions: nn.Module
    dtype: DTypeLike = jnp.float32

    def setup(self):
        def heads(width: int) -> Dense:
            return Dense((self.num_heads, width), bias=False, dtype=self.dtype)

        self.query, self.key, self.value = heads(self.d_k), heads(self.d_k), heads(self.d_v)
        self.merge = Dense((self.d_model,), inputs=2, bias=False, dtype=self.dtype)

    def keys_values(self, x_BSD: jax.Array, pos_BS: jax.Array) -> KV:
        """What these tokens show to queries."""
        key_BSHK = self.positions.rotate(self.key(x_BSD), pos_BS)

        def length_last(x_BSHK: jax.Array) -> jax.Array:
            return jnp.moveaxis(x_BSHK.astype(self.dtype), 1, -1)

        return KV(length_last(key_BSHK), length_last(self.value(x_BSD)), pos_BS)

    def empty(self, batch: int) -> KV:
        """A cache without slots, to be grown."""
        return KV(
            jnp.zeros((batch, self.num_heads, self.d_k, 0), self.dtype),
            jnp.zeros((batch, self.num_heads, self.d_v, 0), self.dtype),
            jnp.zeros((batch, 0), jnp.int32),
        )

    def __call__(
        self,
        x_BTD: jax.Array,
        kv: KV,
        *,
        pos_BT: jax.Array,
        mask_BHTS: jax.Array,
        bias_BHTS: jax.Array | None = None,
    ) -> jax.Array:
        """x_BTD asks, kv answers. → float32 BTD."""
        q_BTHK = self.positions.rotate(self.query(x_BTD), pos_BT).astype(self.dtype)
        y_BTHU = self.attend(q_BTHK, kv, pos_BT=pos_BT, mask_BHTS=mask_BHTS, bias_BHTS=bias_BHTS)
        return self.merge(y_BTHU)

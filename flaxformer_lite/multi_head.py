"""Multi-head attention (paper §3.2.2): project, rotate, attend, merge."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.dense import Dense
from flaxformer_lite.dropout import Dropout
from flaxformer_lite.shapes import KV, Places


class MultiHead(nn.Module):
    """Concat(head_1, …, head_h) W^O, head_i = Attention(x W_i^Q, y W_i^K, y W_i^V), without biases.

    Keys and values are an argument: `keys_values` makes them of the same tokens (self-attention)
    or of the encoder's (cross-attention, once a sentence), or a decoder's cache holds them.

    Attributes:
      d_k, d_v: the widths of one head's queries and keys, and of its values; free of each other.
      attend: what happens between heads, a module of `attention/`.
      positions: a module of `positions/`; its `rotate`, `scores` and `values` are used here.
      project: False leaves out all four matrices: a head is a slice of what comes in.
      num_kv_heads: how many heads have keys and values of their own: None for h; for grouped-query
        attention (Ainslie et al. 2023) a divisor of h, 1 for multi-query (Shazeer 2019).
      head_dropout: of whole heads' results.
      dense: the pattern of the matrices; keys and values are kept in its dtype.
    """

    d_model: int
    num_heads: int
    d_k: int
    d_v: int
    attend: nn.Module
    positions: nn.Module
    project: bool = True
    num_kv_heads: int | None = None
    head_dropout: nn.Module = Dropout(0.0)
    dense: Dense = Dense(())

    def setup(self):
        def matrix(*features, inputs=1):
            return self.dense.copy(
                features=features, inputs=inputs, bias=False, name=None
            )

        self.groups = self.num_kv_heads or self.num_heads
        if self.project:
            self.query = matrix(self.num_heads, self.d_k)
            self.key = matrix(self.groups, self.d_k)
            self.value = matrix(self.groups, self.d_v)
            self.merge = matrix(self.d_model, inputs=2)

    def _heads(self, name, x_BTD):
        """Queries, keys or values of each head, float32."""
        if self.project:
            return getattr(self, name)(x_BTD)
        return x_BTD.reshape(*x_BTD.shape[:2], self.num_heads, self.d_k)

    def keys_values(self, x_BSD: jax.Array, pos_BS: jax.Array) -> KV:
        """What these tokens show to queries."""
        key_BSGK = self.positions.rotate(self._heads('key', x_BSD), pos_BS)

        def length_last(x_BSGK):
            return jnp.moveaxis(x_BSGK.astype(self.dense.dtype), 1, -1)

        return KV(
            length_last(key_BSGK), length_last(self._heads('value', x_BSD)), pos_BS
        )

    def __call__(self, x_BTD: jax.Array, kv: KV, places: Places) -> jax.Array:
        """x_BTD asks, kv answers. → float32 BTD."""
        pos_BT, bias_BHTS = places.pos_BT, places.bias_BHTS
        q_BTHK = self.positions.rotate(self._heads('query', x_BTD), pos_BT).astype(
            self.dense.dtype
        )
        share = self.num_heads // self.groups
        if self.attend.per_head and share > 1:
            key_BHKS, value_BHUS = (
                jnp.repeat(x, share, 1) for x in (kv.key_BGKS, kv.value_BGUS)
            )
            kv, share = KV(key_BHKS, value_BHUS, kv.pos_BS), 1
        y_BTHU = self.attend(
            _fold(q_BTHK, share),
            kv,
            pos_BT=jnp.repeat(pos_BT, share, 1),
            mask_BHTS=_fold_pairs(places.mask_BHTS, share),
            bias_BHTS=None if bias_BHTS is None else _fold_pairs(bias_BHTS, share),
            relative=self.positions if self.positions.relative else None,
        )
        y_BTHU = _unfold(y_BTHU, share)
        if self.has_variable('switches', 'heads'):
            y_BTHU *= self.get_variable('switches', 'heads')[None, None, :, None]
        self.sow('intermediates', 'heads', y_BTHU)
        y_BTHU = self.head_dropout(y_BTHU)
        return (
            self.merge(y_BTHU) if self.project else y_BTHU.reshape(*x_BTD.shape[:2], -1)
        )


def _fold(q_BTHK, share):
    """The queries of the `share` heads that read the same keys, as queries of one head."""
    b, t, h, k = q_BTHK.shape
    q_BTGRK = q_BTHK.reshape(b, t, h // share, share, k)
    return jnp.swapaxes(q_BTGRK, 2, 3).reshape(b, t * share, h // share, k)


def _unfold(y_BTHU, share):
    b, t, g, u = y_BTHU.shape
    y_BTRGU = y_BTHU.reshape(b, t // share, share, g, u)
    return jnp.swapaxes(y_BTRGU, 2, 3).reshape(b, t // share, g * share, u)


def _fold_pairs(x_BHTS, share):
    """A mask or a bias for queries that were folded so."""
    if x_BHTS.shape[1] == 1:
        return x_BHTS if x_BHTS.shape[2] == 1 else jnp.repeat(x_BHTS, share, 2)
    return jnp.swapaxes(_fold(jnp.swapaxes(x_BHTS, 1, 2), share), 1, 2)

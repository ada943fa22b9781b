"""Exact attention in linear memory: Rabe and Staats (2021); Dao et al. (2022)."""

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.attention.base import (
    ScaledDotProduct,
    append_one,
    check_no_positions,
    divide_by_last,
    dot_products,
)
from flaxformer_lite.ops.einsum import einsum
from flaxformer_lite.shapes import split_into_blocks
from flaxformer_lite.validation import Size

# Below any score, but finite: −∞ − −∞ would be NaN before a query has seen a key.
MASK_VALUE = -1e30


class Blockwise(ScaledDotProduct):
    """Softmax attention in linear memory: softmax((Q Kᵀ scale + bias) / T) V.

    An online softmax replaces the matrix of weights, and the backward pass recomputes
    each block of queries. The mask still takes one byte per query-key pair, and a bias
    takes four.

    Sources: Rabe and Staats 2021; Dao et al. 2022, algorithm 1. Use it for long texts,
    on any hardware. It equals `Softmax` up to rounding.

    Attributes:
      block: Maximum number of queries, and of keys, per block.

    Examples:
      >>> import flaxformer_lite as fl
      >>> attention = fl.attention.Blockwise(block=256)
      >>> model = fl.Transformer(vocab_size=100, attention=attention)
    """

    unsupported = ('temperature', 'dropout')
    block: Size = 512

    def __call__(
        self,
        q_BTHK,
        kv,
        *,
        positions_BT,
        mask_BHTS,
        bias_BHTS=None,
        relative_positions=None,
    ):
        check_no_positions(self, relative_positions)
        batch, length, num_heads, _ = q_BTHK.shape

        key_blocks = split_into_blocks(kv.key_BGKS, 3, self.block)
        value_BHUS = append_one(kv.value_BGUS)
        value_blocks = split_into_blocks(value_BHUS, 3, self.block)
        query_blocks = split_into_blocks(q_BTHK, 1, self.block)
        pairs = length, kv.positions_BS.shape[1]
        mask_blocks = self._split_pairs(mask_BHTS, pairs)
        bias_blocks = None
        if bias_BHTS is not None:
            bias_blocks = self._split_pairs(bias_BHTS, pairs)

        attend = functools.partial(
            _attend_from_block, self._block_scores, key_blocks, value_blocks
        )
        y_CBTHU = jax.lax.map(
            jax.checkpoint(attend), (query_blocks, mask_blocks, bias_blocks)
        )
        y_BTHU = jnp.moveaxis(y_CBTHU, 0, 1)
        y_BTHU = y_BTHU.reshape(batch, -1, num_heads, y_CBTHU.shape[-1])
        return y_BTHU[:, :length]

    @nn.nowrap
    def _block_scores(self, q_BTHK, key_BHKS, bias_BHTS):
        scale = self.scale_of(q_BTHK.shape[-1])
        scores_BHTS = self.cap_scores(scale * dot_products(q_BTHK, key_BHKS))
        if bias_BHTS is not None:
            scores_BHTS += bias_BHTS
        return scores_BHTS / self.temperature

    def _split_pairs(self, x_BHTS, pairs):
        x_BHTS = jnp.broadcast_to(x_BHTS, (*x_BHTS.shape[:2], *pairs))
        by_keys = split_into_blocks(x_BHTS, 3, self.block)
        return split_into_blocks(by_keys, 3, self.block)


def _attend_from_block(scores, key_blocks, value_blocks, queries):
    q_BTHK, mask_blocks, bias_blocks = queries
    batch, length, num_heads, _ = q_BTHK.shape
    width = value_blocks.shape[3]
    highest_BHT = jnp.full((batch, num_heads, length), MASK_VALUE)
    sum_BTHU = jnp.zeros((batch, length, num_heads, width))

    def add_block(carry, block):
        key_BHKS, value_BHUS, mask_BHTS, bias_BHTS = block
        scores_BHTS = scores(q_BTHK, key_BHKS, bias_BHTS)
        scores_BHTS = jnp.where(mask_BHTS, scores_BHTS, -jnp.inf)
        carry = _add_block(*carry, scores_BHTS, value_BHUS, q_BTHK.dtype)
        return carry, None

    blocks = key_blocks, value_blocks, mask_blocks, bias_blocks
    (_, sum_BTHU), _ = jax.lax.scan(add_block, (highest_BHT, sum_BTHU), blocks)
    return divide_by_last(sum_BTHU)


def _add_block(highest_BHT, sum_BTHU, scores_BHTS, value_BHUS, dtype):
    """Adds exp(scores) · [values, 1], scaled by exp(−highest score so far)."""
    new_highest_BHT = jnp.maximum(highest_BHT, scores_BHTS.max(-1))
    new_highest_BHT = jax.lax.stop_gradient(new_highest_BHT)
    shrink_BHT = jnp.exp(highest_BHT - new_highest_BHT)
    shrink_BTH = jnp.swapaxes(shrink_BHT, 1, 2)
    exp_BHTS = jnp.exp(scores_BHTS - new_highest_BHT[..., None])
    # The gradients of Σ w v and of Σ w cancel where one key has all the weight.
    # Rounding them separately would leave only rounding errors.
    new_sum_BTHU = einsum(
        'bhts,bhus->bthu', exp_BHTS.astype(dtype), value_BHUS, exact=True
    )
    sum_BTHU = sum_BTHU * shrink_BTH[..., None] + new_sum_BTHU
    return new_highest_BHT, sum_BTHU

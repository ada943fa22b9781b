"""Exact attention in memory linear in length: Rabe and Staats (2021); Dao et al. (2022)."""

import jax
import jax.numpy as jnp

from flaxformer_lite.attention.base import (
    Attention,
    dot,
    over_last,
    refuse,
    weighted_sum,
    with_one,
)
from flaxformer_lite.ranges import Size
from flaxformer_lite.shapes import blocks


class Blockwise(Attention):
    """softmax(Q Kᵀ / √d_k + bias) V by `block` queries and keys at a time; no weights are held.

    The softmax is online: a block of keys with a larger score shrinks what was summed before it.
    The backward pass computes each block again. A mask still is a byte for each pair, a bias four.
    """

    block: Size = 512

    def __call__(self, q_BTHK, kv, *, pos_BT, mask_BHTS, bias_BHTS=None, relative=None):
        refuse('blockwise', relative)
        b, t, h, k = q_BTHK.shape

        def pairs(x_BHTS):  # by queries' blocks, then by keys'
            x_BHTS = jnp.broadcast_to(
                x_BHTS, (*x_BHTS.shape[:2], t, kv.pos_BS.shape[1])
            )
            return blocks(blocks(x_BHTS, 3, self.block), 3, self.block)

        def add(carry, block):
            q_BTHK, top_BHT, y_BTHU = carry
            key_BHKS, value_BHUS, mask_BHTS, bias_BHTS = block
            s_BHTS = dot(q_BTHK, key_BHKS) + (0.0 if bias_BHTS is None else bias_BHTS)
            s_BHTS = jnp.where(mask_BHTS, s_BHTS, -jnp.inf)
            new_BHT = jax.lax.stop_gradient(jnp.maximum(top_BHT, s_BHTS.max(-1)))
            shrink_BTH = jnp.swapaxes(jnp.exp(top_BHT - new_BHT), 1, 2)
            more_BTHU = weighted_sum(jnp.exp(s_BHTS - new_BHT[..., None]), value_BHUS)
            return (q_BTHK, new_BHT, y_BTHU * shrink_BTH[..., None] + more_BTHU), None

        keys = (
            blocks(kv.key_BGKS, 3, self.block),
            blocks(with_one(kv.value_BGUS), 3, self.block),
        )

        @jax.checkpoint
        def of_queries(block):
            q_BTHK, *masks_and_biases = block
            # Below any score, and finite: −∞ − −∞ would be NaN where no key has been seen.
            lowest_BHT = jnp.full((b, h, q_BTHK.shape[1]), -1e30)
            start = (
                q_BTHK,
                lowest_BHT,
                jnp.zeros((*q_BTHK.shape[:3], kv.value_BGUS.shape[2] + 1)),
            )
            (_, _, y_BTHU), _ = jax.lax.scan(add, start, (*keys, *masks_and_biases))
            return over_last(y_BTHU)

        masks = pairs(mask_BHTS), None if bias_BHTS is None else pairs(bias_BHTS)
        y_CBTHU = jax.lax.map(
            of_queries, (blocks(q_BTHK * k**-0.5, 1, self.block), *masks)
        )
        return jnp.moveaxis(y_CBTHU, 0, 1).reshape(b, -1, h, y_CBTHU.shape[-1])[:, :t]

"""Exact attention in memory linear in length: Rabe and Staats (2021); Dao et al. (2022)."""

import jax
import jax.numpy as jnp

from flaxformer_lite.attention.base import Attention, dot, refuse, weighted_sum
from flaxformer_lite.shapes import KV, blocks


class Blockwise(Attention):
    """softmax(Q Kᵀ / √d_k + bias) V by blocks of queries and keys; no weights are ever held whole.

    The softmax is online: a block of keys with a larger score shrinks what was summed before it.
    The backward pass computes each block again. A mask still is a byte for each pair.

    Attributes:
      block: how many queries, and keys, at a time.

    Raises:
      ValueError: block is below 1.
    """

    block: int = 512

    def __post_init__(self):
        if self.block < 1:
            raise ValueError(f'block must be at least 1, not {self.block}')
        super().__post_init__()

    def __call__(
        self, q_BTHK: jax.Array, kv: KV, *, pos_BT, mask_BHTS, bias_BHTS=None, relative=None
    ) -> jax.Array:
        refuse('blockwise', relative=relative)
        (b, t, h, k), s = q_BTHK.shape, kv.pos_BS.shape[1]

        def pairs(x_BHTS: jax.Array) -> jax.Array:  # by queries' blocks, then by keys'
            x_BHTS = jnp.broadcast_to(x_BHTS, (*x_BHTS.shape[:2], t, s))
            return blocks(blocks(x_BHTS, 3, self.block), 3, self.block)

        def add(carry, block):
            q_BTHK, top_BHT, sum_BHT, y_BHTU = carry
            key_BHKS, value_BHUS, mask_BHTS, bias_BHTS = block
            s_BHTS = dot(q_BTHK, key_BHKS) + (0.0 if bias_BHTS is None else bias_BHTS)
            s_BHTS = jnp.where(mask_BHTS, s_BHTS, -jnp.inf)
            new_BHT = jax.lax.stop_gradient(jnp.maximum(top_BHT, s_BHTS.max(-1)))
            e_BHTS, shrink_BHT = jnp.exp(s_BHTS - new_BHT[..., None]), jnp.exp(top_BHT - new_BHT)
            y_BHTU *= shrink_BHT[..., None]
            y_BHTU += jnp.swapaxes(weighted_sum(e_BHTS, value_BHUS), 1, 2)
            return (q_BTHK, new_BHT, sum_BHT * shrink_BHT + e_BHTS.sum(-1), y_BHTU), None

        keys = blocks(kv.key_BGKS, 3, self.block), blocks(kv.value_BGUS, 3, self.block)

        @jax.checkpoint
        def of_queries(block):
            q_BTHK, *masks_and_biases = block
            zero_BHTU = jnp.zeros((b, h, q_BTHK.shape[1], kv.value_BGUS.shape[2]))
            # Below any score, and finite: −∞ − −∞ would be NaN where no key has been seen.
            start = q_BTHK, zero_BHTU[..., 0] - 1e30, zero_BHTU[..., 0], zero_BHTU
            (_, _, sum_BHT, y_BHTU), _ = jax.lax.scan(add, start, (*keys, *masks_and_biases))
            return y_BHTU / jnp.where(sum_BHT > 0, sum_BHT, 1.0)[..., None]

        biases = None if bias_BHTS is None else pairs(bias_BHTS)
        queries = blocks(q_BTHK * k**-0.5, 1, self.block)
        y_CBHTU = jax.lax.map(of_queries, (queries, pairs(mask_BHTS), biases))
        return jnp.moveaxis(y_CBHTU, (0, 3), (1, 2)).reshape(b, -1, h, y_CBHTU.shape[-1])[:, :t]

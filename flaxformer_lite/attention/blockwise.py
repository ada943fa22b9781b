"""Exact attention in memory linear in length: Rabe and Staats (2021); Dao et al. (2022)."""

import jax
import jax.numpy as jnp

from flaxformer_lite.attention.base import Attention, dot, refuse
from flaxformer_lite.shapes import KV


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
        of_t, of_s = -(-t // self.block), -(-s // self.block)

        def split(x: jax.Array, axis: int, count: int) -> jax.Array:
            """The axis as (count, size of a block), filled up with zeros, count first."""
            widths = [(0, -x.shape[a] % count if a == axis else 0) for a in range(x.ndim)]
            x = jnp.pad(x, widths)
            return jnp.moveaxis(
                x.reshape(*x.shape[:axis], count, -1, *x.shape[axis + 1 :]), axis, 0
            )

        def pairs(x_BHTS: jax.Array) -> jax.Array:
            x_BHTS = jnp.broadcast_to(x_BHTS, (*x_BHTS.shape[:2], t, s))
            return split(split(x_BHTS, 3, of_s), 3, of_t)  # (queries' block, keys' block, …)

        keys = split(kv.key_BGKS, 3, of_s), split(kv.value_BGUS, 3, of_s)
        masks, biases = pairs(mask_BHTS), None if bias_BHTS is None else pairs(bias_BHTS)

        @jax.checkpoint
        def of_queries(block):
            q, masks, biases = block

            def add(carry, block):
                top_BHT, sum_BHT, y_BHTU = carry
                key, value, mask, bias = block
                s_BHTS = dot(q, key) if bias is None else dot(q, key) + bias
                s_BHTS = jnp.where(mask, s_BHTS, -jnp.inf)
                new_BHT = jax.lax.stop_gradient(jnp.maximum(top_BHT, s_BHTS.max(-1)))
                e_BHTS = jnp.exp(s_BHTS - new_BHT[..., None])
                shrink_BHT = jnp.exp(top_BHT - new_BHT)
                e_y = jnp.einsum(
                    'bhts,bhus->bhtu',
                    e_BHTS.astype(value.dtype),
                    value,
                    preferred_element_type=jnp.float32,
                )
                sum_BHT = sum_BHT * shrink_BHT + e_BHTS.sum(-1)
                return (new_BHT, sum_BHT, y_BHTU * shrink_BHT[..., None] + e_y), None

            # Below any score, and finite: −∞ − −∞ would be NaN where no key has been seen.
            zero_BHTU = jnp.zeros((b, h, q.shape[1], kv.value_BGUS.shape[2]))
            start = zero_BHTU[..., 0] - 1e30, zero_BHTU[..., 0], zero_BHTU
            (_, sum_BHT, y_BHTU), _ = jax.lax.scan(add, start, (*keys, masks, biases))
            return y_BHTU / jnp.where(sum_BHT > 0, sum_BHT, 1.0)[..., None]

        y_CBHTU = jax.lax.map(of_queries, (split(q_BTHK * k**-0.5, 1, of_t), masks, biases))
        y_BTHU = jnp.moveaxis(y_CBHTU, (0, 3), (1, 2)).reshape(b, -1, h, y_CBHTU.shape[-1])
        return y_BTHU[:, :t]

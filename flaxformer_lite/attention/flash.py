"""Fused attention on NVIDIA GPUs (Dao et al. 2022), cuDNN's, through `jax.nn`."""

import jax
import jax.numpy as jnp

from flaxformer_lite.attention.base import Attention, refuse


class Flash(Attention):
    """softmax(Q Kᵀ / √d_k + bias) V, computed by blocks on the chip; `blockwise` does so anywhere.

    Raises:
      ValueError: when called without a GPU, in float32, which cuDNN does not do, with a d_k that is
        no multiple of 8, a d_v that is not d_k, or positions that act on scores by queries.
    """

    backend = 'gpu'
    implementation = 'cudnn'

    def __call__(self, q_BTHK, kv, *, pos_BT, mask_BHTS, bias_BHTS=None, relative=None):
        refuse('flash', relative)
        if jax.default_backend() != self.backend:
            raise ValueError(
                'flash attention needs a GPU with cuDNN: choose attention=blockwise here'
            )
        d_k, d_v = kv.key_BGKS.shape[2], kv.value_BGUS.shape[2]
        if q_BTHK.dtype != jnp.bfloat16 or d_k % 8 or d_k != d_v:
            raise ValueError(
                'flash attention needs model.dtype=bfloat16 and d_v = d_k, a multiple of 8, not '
                f'{q_BTHK.dtype}, {d_v} and {d_k}: choose them so, or attention=blockwise'
            )
        key_BSHK, value_BSHU = (
            jnp.moveaxis(x, -1, 1) for x in (kv.key_BGKS, kv.value_BGUS)
        )
        bias_BHTS = None if bias_BHTS is None else bias_BHTS.astype(q_BTHK.dtype)
        y_BTHU = jax.nn.dot_product_attention(
            q_BTHK,
            key_BSHK,
            value_BSHU,
            bias_BHTS,
            mask_BHTS,
            implementation=self.implementation,
        )
        sees_BTH1 = jnp.swapaxes(mask_BHTS.any(-1, keepdims=True), 1, 2)
        return jnp.where(sees_BTH1, y_BTHU.astype(jnp.float32), 0.0)

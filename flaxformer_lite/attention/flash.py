"""Fused attention on NVIDIA GPUs (Dao et al. 2022): cuDNN's, through `jax.nn`."""

from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from flaxformer_lite.attention.base import ScaledDotProduct, refuse_positions


class Flash(ScaledDotProduct):
    """softmax((Q Kᵀ scale + bias) / T) V by blocks on the chip; anywhere: `blockwise`.

    Raises:
      ValueError: when called without a GPU; in float32, which cuDNN does not do; with a
        d_k that is no multiple of 8 or a d_v other than d_k; or with positions that act
        on scores by queries.
    """

    unsupported = ('temperature', 'cap', 'dropout')
    backend = 'gpu'
    implementation: ClassVar[Literal['cudnn', 'xla']] = 'cudnn'

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
        refuse_positions('flash', relative_positions)
        self._refuse_unsupported(q_BTHK.dtype, kv)
        key_BSHK = jnp.moveaxis(kv.key_BGKS, -1, 1)
        value_BSHU = jnp.moveaxis(kv.value_BGUS, -1, 1)
        if bias_BHTS is not None:
            bias_BHTS = (bias_BHTS / self.temperature).astype(q_BTHK.dtype)
        y_BTHU = jax.nn.dot_product_attention(
            q_BTHK,
            key_BSHK,
            value_BSHU,
            bias_BHTS,
            mask_BHTS,
            scale=self.scale_of(q_BTHK.shape[-1]) / self.temperature,
            implementation=self.implementation,
        )
        has_keys_BTH1 = jnp.swapaxes(mask_BHTS.any(-1, keepdims=True), 1, 2)
        return jnp.where(has_keys_BTH1, y_BTHU.astype(jnp.float32), 0.0)

    def _refuse_unsupported(self, dtype, kv):
        if jax.default_backend() != self.backend:
            raise ValueError(
                'flash attention needs a GPU with cuDNN: choose attention=blockwise '
                'here'
            )
        d_k, d_v = kv.key_BGKS.shape[2], kv.value_BGUS.shape[2]
        if dtype != jnp.bfloat16 or d_k % 8 or d_k != d_v:
            raise ValueError(
                'flash attention needs model.dtype=bfloat16 and d_v = d_k, a multiple '
                f'of 8, not {dtype}, {d_v} and {d_k}: choose them so, or '
                'attention=blockwise'
            )

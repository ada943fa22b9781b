"""Fused attention on NVIDIA GPUs through cuDNN (Dao et al. 2022)."""

import jax
import jax.numpy as jnp

from flaxformer_lite.attention.base import ScaledDotProduct, check_no_positions
from flaxformer_lite.ops.fused_attention import fused_attention


class Flash(ScaledDotProduct):
    """Fused softmax attention on NVIDIA GPUs: softmax((Q Kᵀ scale + bias) / T) V.

    `Blockwise` computes the same function on any hardware.

    Source: Dao et al. 2022. Use it for long texts in bfloat16 on an NVIDIA GPU.

    Raises:
      ValueError: The dtype is not bfloat16. `d_k` is not a multiple of 8, differs from
        d_v, or is unsupported by this GPU's cuDNN. Relative positions are given. The
        program is lowered for another platform.
    """

    unsupported = ('temperature', 'cap', 'dropout')
    backend = 'gpu'

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
        self._check_supported(q_BTHK.dtype, kv)
        queries = q_BTHK.shape[1]
        keys = kv.key_BGKS.shape[-1]
        mask_BHTS = jnp.broadcast_to(mask_BHTS, (*mask_BHTS.shape[:2], queries, keys))
        if bias_BHTS is not None:
            bias_BHTS = (bias_BHTS / self.temperature).astype(q_BTHK.dtype)
            bias_BHTS = _pad_to_even(_pad_to_even(bias_BHTS, 2), 3)
        key_BSGK = jnp.moveaxis(kv.key_BGKS, -1, 1)
        value_BSGU = jnp.moveaxis(kv.value_BGUS, -1, 1)
        y_BTHU = fused_attention(
            _pad_to_even(q_BTHK, 1),
            _pad_to_even(key_BSGK, 1),
            _pad_to_even(value_BSGU, 1),
            bias_BHTS,
            _pad_to_even(_pad_to_even(mask_BHTS, 2), 3),
            scale=self.scale_of(q_BTHK.shape[-1]) / self.temperature,
        )
        has_keys_BHT1 = mask_BHTS.any(-1, keepdims=True)
        has_keys_BTH1 = jnp.swapaxes(has_keys_BHT1, 1, 2)
        y_BTHU = y_BTHU[:, :queries].astype(jnp.float32)
        return jnp.where(has_keys_BTH1, y_BTHU, 0.0)

    def _check_supported(self, dtype, kv):
        d_k = kv.key_BGKS.shape[2]
        d_v = kv.value_BGUS.shape[2]
        if dtype != jnp.bfloat16 or d_k % 8 or d_k != d_v:
            raise ValueError(
                'attention: Flash needs dtype=bfloat16 and d_v = d_k, a multiple of 8, '
                f'not {dtype}, {d_v} and {d_k}. Change them, or choose Blockwise.'
            )


def _pad_to_even(x: jax.Array, axis: int) -> jax.Array:
    """Pads an axis of odd length with one zero, or False.

    With a mask, cuDNN's backward pass supports only even lengths.
    """
    padding = [(0, 0)] * x.ndim
    padding[axis] = (0, x.shape[axis] % 2)
    return jnp.pad(x, padding)

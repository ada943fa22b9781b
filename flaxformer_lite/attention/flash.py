"""Fused attention on NVIDIA GPUs (Dao et al. 2022): cuDNN's, through `jax.nn`."""

from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from flaxformer_lite.attention.base import ScaledDotProduct, refuse_positions


class Flash(ScaledDotProduct):
    """softmax((Q Kᵀ scale + bias) / T) V by blocks on the chip; anywhere: `blockwise`.

    Raises:
      ValueError: when called without a GPU; in float32, which cuDNN does not do; with a
        d_k that is no multiple of 8 or a d_v other than d_k, or that this GPU's cuDNN
        does not do; or with positions that act on scores by queries.
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
        queries = q_BTHK.shape[1]
        keys = kv.key_BGKS.shape[-1]
        mask_BHTS = jnp.broadcast_to(mask_BHTS, (*mask_BHTS.shape[:2], queries, keys))
        if bias_BHTS is not None:
            bias_BHTS = (bias_BHTS / self.temperature).astype(q_BTHK.dtype)
            bias_BHTS = _to_even(_to_even(bias_BHTS, 2), 3)
        key_BSGK = jnp.moveaxis(kv.key_BGKS, -1, 1)
        value_BSGU = jnp.moveaxis(kv.value_BGUS, -1, 1)
        y_BTHU = self._fused(
            _to_even(q_BTHK, 1),
            _to_even(key_BSGK, 1),
            _to_even(value_BSGU, 1),
            bias_BHTS,
            _to_even(_to_even(mask_BHTS, 2), 3),
        )
        has_keys_BHT1 = mask_BHTS.any(-1, keepdims=True)
        has_keys_BTH1 = jnp.swapaxes(has_keys_BHT1, 1, 2)
        y_BTHU = y_BTHU[:, :queries].astype(jnp.float32)
        return jnp.where(has_keys_BTH1, y_BTHU, 0.0)

    def _fused(self, q_BTHK, *arrays):
        scale = self.scale_of(q_BTHK.shape[-1]) / self.temperature
        try:
            return jax.nn.dot_product_attention(
                q_BTHK, *arrays, scale=scale, implementation=self.implementation
            )
        except NotImplementedError as error:
            raise ValueError(
                f'flash attention is not for this GPU: {error} Choose '
                'attention=blockwise'
            ) from error

    def _refuse_unsupported(self, dtype, kv):
        if jax.default_backend() != self.backend:
            raise ValueError(
                'flash attention needs a GPU with cuDNN: choose attention=blockwise '
                'here'
            )
        d_k = kv.key_BGKS.shape[2]
        d_v = kv.value_BGUS.shape[2]
        if dtype != jnp.bfloat16 or d_k % 8 or d_k != d_v:
            raise ValueError(
                'flash attention needs model.dtype=bfloat16 and d_v = d_k, a multiple '
                f'of 8, not {dtype}, {d_v} and {d_k}: choose them so, or '
                'attention=blockwise'
            )


def _to_even(x: jax.Array, axis: int) -> jax.Array:
    """Pads an axis with one zero, or False, if its length is odd.

    In a backward pass with a mask cuDNN takes even lengths alone.
    """
    padding = [(0, 0)] * x.ndim
    padding[axis] = (0, x.shape[axis] % 2)
    return jnp.pad(x, padding)

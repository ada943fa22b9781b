"""The feed-forward network with GELU (Hendrycks and Gimpel 2016)."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from flaxformer_lite.dense import Dense


class Gelu(nn.Module):
    """GELU(x W₁ + b₁) W₂ + b₂ with the exact GELU, x Φ(x)."""

    d_ff: int
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        h_BTF = Dense((self.d_ff,), dtype=self.dtype, name='up')(x_BTD)
        h_BTF = jax.nn.gelu(h_BTF, approximate=False)
        return Dense(x_BTD.shape[-1:], dtype=self.dtype, name='down')(h_BTF)

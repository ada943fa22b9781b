"""The paper's feed-forward network (§3.3, equation 2)."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from flaxformer_lite.dense import Dense


class Relu(nn.Module):
    """max(0, x W₁ + b₁) W₂ + b₂."""

    d_ff: int
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        h_BTF = jax.nn.relu(Dense((self.d_ff,), dtype=self.dtype, name='up')(x_BTD))
        return Dense(x_BTD.shape[-1:], dtype=self.dtype, name='down')(h_BTF)

"""The gated feed-forward network with Swish (Shazeer 2020, "GLU Variants", equation 6)."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from flaxformer_lite.dense import Dense


class Swiglu(nn.Module):
    """(Swish(x W) ⊙ x V) W₂, without biases, as in its source.

    It has three matrices where ReLU's has two: for the same parameters give it 2/3 of the d_ff.
    """

    d_ff: int
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        gate_BTF = Dense((self.d_ff,), bias=False, dtype=self.dtype, name='gate')(x_BTD)
        up_BTF = Dense((self.d_ff,), bias=False, dtype=self.dtype, name='up')(x_BTD)
        down = Dense(x_BTD.shape[-1:], bias=False, dtype=self.dtype, name='down')
        return down(jax.nn.silu(gate_BTF) * up_BTF)

"""What feed-forward networks have in common: up, an activation, down (paper §3.3)."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from flaxformer_lite.dense import Dense
from flaxformer_lite.init.base import Init
from flaxformer_lite.init.xavier import Xavier
from flaxformer_lite.shapes import Valid


class FeedForward(nn.Module):
    """f(x W₁ + b₁) W₂ + b₂. A variant overrides f.

    Attributes:
      d_ff: width of the hidden layer.
      dtype: of the products' operands.
      initial: what the matrices are at first.
    """

    d_ff: int
    dtype: DTypeLike = jnp.float32
    initial: Init = Xavier()

    def dense(self, width: int, name: str, bias: bool = True) -> Dense:
        """One of the network's matrices."""
        return Dense((width,), bias=bias, dtype=self.dtype, initial=self.initial, name=name)

    def activation(self, h_BTF: jax.Array) -> jax.Array:
        """f, element by element."""
        raise NotImplementedError

    @nn.compact
    def __call__(self, x_BTD: jax.Array, valid_BT: Valid = None) -> jax.Array:
        h_BTF = self.activation(self.dense(self.d_ff, 'up')(x_BTD))
        return self.dense(x_BTD.shape[-1], 'down')(h_BTF)


class Gated(FeedForward):
    """(f(x W) ⊙ x V) W₂, without biases, as in its source (Shazeer 2020, "GLU Variants").

    It has three matrices where the others have two: for the same parameters give it 2/3 of d_ff.
    """

    @nn.compact
    def __call__(self, x_BTD: jax.Array, valid_BT: Valid = None) -> jax.Array:
        gate_BTF = self.activation(self.dense(self.d_ff, 'gate', bias=False)(x_BTD))
        up_BTF = self.dense(self.d_ff, 'up', bias=False)(x_BTD)
        return self.dense(x_BTD.shape[-1], 'down', bias=False)(gate_BTF * up_BTF)

"""What feed-forward networks have in common: up, an activation, down (paper §3.3)."""

from typing import Any

import jax
from flax import linen as nn

from flaxformer_lite.dense import Dense
from flaxformer_lite.ranges import Checked, Size
from flaxformer_lite.shapes import Valid


class FeedForward(Checked, nn.Module):
    """f(x W₁ + b₁) W₂ + b₂, the matrices after the pattern `dense`. A variant overrides f."""

    d_ff: Size
    dense: Dense = Dense(())

    def layer(self, width: int, name: str, **others: Any) -> Dense:
        """One of the network's matrices."""
        return self.dense.copy(features=(width,), name=name, **others)

    def activation(self, h_BTF: jax.Array) -> jax.Array:
        """f, element by element."""
        raise NotImplementedError

    @nn.compact
    def __call__(self, x_BTD: jax.Array, valid_BT: Valid = None) -> jax.Array:
        h_BTF = self.activation(self.layer(self.d_ff, 'up')(x_BTD))
        return self.layer(x_BTD.shape[-1], 'down')(h_BTF)


class Gated(FeedForward):
    """(f(x W) ⊙ x V) W₂, without biases, as in its source (Shazeer 2020, "GLU Variants").

    It has three matrices where the others have two: for the same parameters give it 2/3 of d_ff.
    """

    @nn.compact
    def __call__(self, x_BTD, valid_BT=None):
        gate_BTF = self.activation(self.layer(self.d_ff, 'gate', bias=False)(x_BTD))
        up_BTF = self.layer(self.d_ff, 'up', bias=False)(x_BTD)
        return self.layer(x_BTD.shape[-1], 'down', bias=False)(gate_BTF * up_BTF)

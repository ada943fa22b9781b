"""Base classes of feed-forward networks (paper §3.3)."""

from typing import Annotated, Any, ClassVar

import jax
from flax import linen as nn

from flaxformer_lite.layers.dense.base import Dense
from flaxformer_lite.layers.dropout import Dropout
from flaxformer_lite.sizes import Sizes
from flaxformer_lite.taps import tap
from flaxformer_lite.validation import Checked, Range, Rate


class FeedForward(Checked, nn.Module):
    """Dropout(f(x W₁ + b₁)) W₂ + b₂. Variants define f:

        class Softplus(fl.feed_forward.FeedForward):
            def activation(self, h_BTF):
                return jax.nn.softplus(h_BTF)

    Attributes:
      d_ff: Inner width. 0 uses that of the stack.
      bias: Whether to add b₁ and b₂.
      dropout: Dropout rate of the input of W₂.
    """

    set_by_model: ClassVar[tuple[str, ...]] = ('sizes', 'dense')
    sizes: Sizes = Sizes()
    dense: Dense = Dense()
    d_ff: Annotated[int, Range(at_least=0)] = 0
    bias: bool = True
    dropout: Rate = 0.0

    @property
    def width(self) -> int:
        return self.d_ff or self.sizes.d_ff

    def matrix(self, width: int, name: str, **others: Any) -> Dense:
        bias = others.pop('bias', self.bias)
        return self.dense.copy(features=(width,), name=name, bias=bias, **others)

    def project_down(self, h_BTF: jax.Array, width: int) -> jax.Array:
        """Projects activations to `width`, after dropout."""
        h_BTF = tap(self, '../mlp_post', Dropout(self.dropout)(h_BTF), 'BTF')
        return self.matrix(width, 'down')(h_BTF)

    def activation(self, h_BTF: jax.Array) -> jax.Array:
        """Applies f elementwise."""
        raise NotImplementedError

    @nn.compact
    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        h_BTF = self.matrix(self.width, 'up')(x_BTD)
        h_BTF = self.activation(tap(self, '../mlp_pre', h_BTF, 'BTF'))
        return self.project_down(h_BTF, x_BTD.shape[-1])


class Gated(FeedForward):
    """Dropout(f(x W) ⊙ x V) W₂, by default without biases (Shazeer 2020)."""

    bias: bool = False

    @nn.compact
    def __call__(self, x_BTD):
        gate_BTF = self.matrix(self.width, 'gate')(x_BTD)
        gate_BTF = self.activation(tap(self, '../mlp_pre', gate_BTF, 'BTF'))
        up_BTF = self.matrix(self.width, 'up')(x_BTD)
        return self.project_down(gate_BTF * up_BTF, x_BTD.shape[-1])

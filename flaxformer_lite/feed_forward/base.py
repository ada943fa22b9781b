"""What feed-forward networks have in common: up, an activation, down (paper §3.3)."""

from typing import Annotated, Any

import jax
from flax import linen as nn

from flaxformer_lite.layers.dense import Dense
from flaxformer_lite.layers.dropout import Dropout
from flaxformer_lite.ranges import Checked, Range, Rate
from flaxformer_lite.sizes import Sizes


class FeedForward(Checked, nn.Module):
    """Dropout(f(x W₁ + b₁)) W₂ + b₂. A variant says what f is.

    Attributes:
      sizes: of the stack.
      dense: the template of the matrices.
      d_ff: the inner width; 0 for that of the stack.
      bias: whether b₁ and b₂ are there.
      dropout: of what goes into W₂; the paper has none.
    """

    sizes: Sizes = Sizes()
    dense: Dense = Dense()
    d_ff: Annotated[int, Range(at_least=0)] = 0
    bias: bool = True
    dropout: Rate = 0.0

    @property
    def width(self) -> int:
        """The inner width."""
        return self.d_ff or self.sizes.d_ff

    def matrix(self, width: int, name: str, **others: Any) -> Dense:
        """One of the network's matrices."""
        bias = others.pop('bias', self.bias)
        return self.dense.copy(features=(width,), name=name, bias=bias, **others)

    def project_down(self, h_BTF: jax.Array, width: int) -> jax.Array:
        """The network's result, so wide, of what its activation gave."""
        return self.matrix(width, 'down')(Dropout(self.dropout)(h_BTF))

    def activation(self, h_BTF: jax.Array) -> jax.Array:
        """f, element by element."""
        raise NotImplementedError

    @nn.compact
    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        h_BTF = self.matrix(self.width, 'up')(x_BTD)
        h_BTF = self.activation(h_BTF)
        return self.project_down(h_BTF, x_BTD.shape[-1])


class Gated(FeedForward):
    """Dropout(f(x W) ⊙ x V) W₂, by default without biases (Shazeer 2020).

    It has three matrices where the others have two: for the same number of parameters,
    give it 2/3 of d_ff.
    """

    bias: bool = False

    @nn.compact
    def __call__(self, x_BTD):
        gate_BTF = self.matrix(self.width, 'gate')(x_BTD)
        gate_BTF = self.activation(gate_BTF)
        up_BTF = self.matrix(self.width, 'up')(x_BTD)
        return self.project_down(gate_BTF * up_BTF, x_BTD.shape[-1])

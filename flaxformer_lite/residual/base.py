"""Base class of residual connections."""

from typing import ClassVar

import jax
from flax import linen as nn

from flaxformer_lite.sizes import Sizes
from flaxformer_lite.validation import Checked


class Residual(Checked, nn.Module):
    """x + Dropout(f(x)). Variants override methods; each sublayer has its own copy.

    Attributes:
      norm: A module of `norms/`, copied for each use.
      dropout: Dropout of the sublayer output (§5.4).
      default_init: The default of `init`.
      unused_fields: `model` config fields without effect.
    """

    default_init: ClassVar[str] = 'xavier'
    unused_fields: ClassVar[tuple[str, ...]] = ()
    norm: nn.Module
    dropout: nn.Module
    sizes: Sizes = Sizes()

    def before(self, x_BTD: jax.Array) -> jax.Array:
        """Returns the input of the sublayer f."""
        return x_BTD

    def after(self, x_BTD: jax.Array, y_BTD: jax.Array) -> jax.Array:
        """Returns the new residual stream, given the stream x and sublayer output y."""
        return x_BTD + self.dropout(y_BTD)

    def final_norm(self, x_BTD: jax.Array) -> jax.Array:
        """Returns the output of the stack, given the stream after the last layer."""
        return x_BTD

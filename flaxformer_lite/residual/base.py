"""What residual connections have in common."""

from typing import ClassVar

import jax
from flax import linen as nn

from flaxformer_lite.ranges import Checked
from flaxformer_lite.sizes import Sizes


class Residual(Checked, nn.Module):
    """x + Dropout(f(x)). A variant overrides a part; each sublayer has its own copy.

    Attributes:
      norm: a module of `norms/`, of which a copy is made for each place.
      dropout: of the sublayer's output (§5.4).
      sizes: of the stack; its depth and role.
      default_init: the `init` that a config without one gets.
      unused_fields: fields of a `model` config that change nothing with this variant.
    """

    default_init: ClassVar[str] = 'xavier'
    unused_fields: ClassVar[tuple[str, ...]] = ()
    norm: nn.Module
    dropout: nn.Module
    sizes: Sizes = Sizes()

    def before(self, x_BTD: jax.Array) -> jax.Array:
        """The input of the sublayer f."""
        return x_BTD

    def after(self, x_BTD: jax.Array, y_BTD: jax.Array) -> jax.Array:
        """The residual stream after the sublayer, from the stream x and y = f(…)."""
        return x_BTD + self.dropout(y_BTD)

    def final_norm(self, x_BTD: jax.Array) -> jax.Array:
        """The output of the stack, from the stream after the last layer."""
        return x_BTD

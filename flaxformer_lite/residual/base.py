"""What residual connections have in common."""

from typing import ClassVar

import jax
from flax import linen as nn

from flaxformer_lite.ranges import Checked
from flaxformer_lite.shapes import Valid


class Residual(Checked, nn.Module):
    """x + Dropout(f(x)). A variant overrides what it changes; each sublayer has a copy of its own.

    Attributes:
      norm: a module of `norms/`, of which a copy is made for each place.
      dropout: of the branch (§5.4).
      initial: the `init` of a config that names none.
      idle: fields of a `model` config that it does nothing with.
    """

    initial: ClassVar[str] = 'xavier'
    idle: ClassVar[tuple[str, ...]] = ()
    norm: nn.Module
    dropout: nn.Module

    def before(self, x_BTD: jax.Array, valid_BT: Valid = None) -> jax.Array:
        """What f gets."""
        return x_BTD

    def after(
        self, x_BTD: jax.Array, y_BTD: jax.Array, valid_BT: Valid = None
    ) -> jax.Array:
        """The stream, of x and f's result y."""
        return x_BTD + self.dropout(y_BTD)

    def finish(self, x_BTD: jax.Array, valid_BT: Valid = None) -> jax.Array:
        """What leaves the stack."""
        return x_BTD

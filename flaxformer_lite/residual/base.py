"""Base class of residual connections."""

from typing import ClassVar

import jax
from flax import linen as nn

from flaxformer_lite.init.base import Init
from flaxformer_lite.init.xavier import Xavier
from flaxformer_lite.sizes import SET_BY_MODEL, Sizes
from flaxformer_lite.validation import Checked


class Residual(Checked, nn.Module):
    """x + Dropout(f(x)). Variants override methods; each sublayer has its own copy.

        class Halved(fl.residual.Residual):
            def after(self, x_BTD, y_BTD):
                return x_BTD + self.dropout(y_BTD) / 2

    Attributes:
      norm: A module of `fl.norms`, copied for each use. Defaults to the model's.
      dropout: Dropout of the sublayer output (§5.4). Defaults to the model's.
      default_init: Initializer of a model that doesn't set one.
      unused_fields: Fields of the model without effect.
    """

    set_by_model: ClassVar[tuple[str, ...]] = ('norm', 'dropout', 'sizes')
    default_init: ClassVar[type[Init]] = Xavier
    unused_fields: ClassVar[tuple[str, ...]] = ()
    norm: nn.Module = SET_BY_MODEL
    dropout: nn.Module = SET_BY_MODEL
    sizes: Sizes = Sizes()

    @property
    def num_streams(self) -> int:
        """Width of the residual stream, in multiples of `d_model`."""
        return 1

    def initial_stream(self, x_BTD: jax.Array) -> jax.Array:
        """Returns the residual stream before the first layer, given the stack's input.

        In the other methods, x is that wide.
        """
        return x_BTD

    def before(self, x_BTD: jax.Array) -> jax.Array:
        """Returns the input of the sublayer f."""
        return x_BTD

    def after(self, x_BTD: jax.Array, y_BTD: jax.Array) -> jax.Array:
        """Returns the new residual stream, given the stream x and sublayer output y."""
        return x_BTD + self.dropout(y_BTD)

    def final_norm(self, x_BTD: jax.Array) -> jax.Array:
        """Returns the output of the stack, given the stream after the last layer."""
        return x_BTD

"""No residual connection: what attention and networks can do by themselves."""

from typing import ClassVar

import jax

from flaxformer_lite.residual.base import Residual
from flaxformer_lite.shapes import Valid


class NoResidual(Residual):
    """Dropout(f(x))."""

    idle: ClassVar[tuple[str, ...]] = ('norm',)

    def after(self, x_BTD: jax.Array, y_BTD: jax.Array, valid_BT: Valid = None) -> jax.Array:
        return self.dropout(y_BTD)

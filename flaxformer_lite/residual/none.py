"""No residual connection: what attention and networks can do by themselves."""

import jax

from flaxformer_lite.residual.base import Residual
from flaxformer_lite.shapes import Valid


class NoResidual(Residual):
    """Dropout(f(x))."""

    def after(self, x_BTD: jax.Array, y_BTD: jax.Array, valid_BT: Valid = None) -> jax.Array:
        return self.dropout(y_BTD)

"""The paper's residual connection: normalise the sum (§3.1, §5.4)."""

import jax

from flaxformer_lite.residual.base import Residual
from flaxformer_lite.shapes import Valid


class PostNorm(Residual):
    """LayerNorm(x + Dropout(f(x)))."""

    def after(self, x_BTD: jax.Array, y_BTD: jax.Array, valid_BT: Valid = None) -> jax.Array:
        return self.norm(super().after(x_BTD, y_BTD, valid_BT), valid_BT)

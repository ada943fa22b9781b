"""Root mean square normalisation (Zhang and Sennrich 2019)."""

from typing import ClassVar

import jax

from flaxformer_lite.norms.base import Norm, unit
from flaxformer_lite.shapes import Valid


class Rms(Norm):
    """x / √(E x² + ε) · γ over features, in float32."""

    biased: ClassVar[bool] = False
    epsilon: float = 1e-6

    def normalized(self, x_BTD: jax.Array, valid_BT: Valid) -> jax.Array:
        return unit(x_BTD, self.epsilon)

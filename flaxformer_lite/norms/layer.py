"""Layer normalisation (Ba et al. 2016; paper §3.1)."""

import jax

from flaxformer_lite.norms.base import Norm, unit
from flaxformer_lite.shapes import Valid


class Layer(Norm):
    """(x − E x) / √(Var x + ε) · γ + β over features, the variance biased, in float32."""

    epsilon: float = 1e-6

    def normalized(self, x_BTD: jax.Array, valid_BT: Valid) -> jax.Array:
        return unit(x_BTD, self.epsilon, centered=True)

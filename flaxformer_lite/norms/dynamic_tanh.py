"""Dynamic tanh (Zhu et al. 2025, "Transformers without Normalization")."""

import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.norms.base import Norm
from flaxformer_lite.ranges import Positive


class DynamicTanh(Norm):
    """tanh(α x) · γ + β, one learned α, `alpha` at first: no statistics at all."""

    alpha: Positive = 0.5

    def normalized(self, x_BTD, valid_BT):
        return jnp.tanh(
            self.param('alpha', nn.initializers.constant(self.alpha), ()) * x_BTD
        )

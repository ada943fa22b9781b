"""Dynamic tanh (Zhu et al. 2025, "Transformers without Normalization")."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.shapes import Valid


class DynamicTanh(nn.Module):
    """tanh(α x) · γ + β, one learned α: no statistics at all.

    Attributes:
      alpha: what α is at first.
    """

    alpha: float = 0.5

    @nn.compact
    def __call__(self, x_BTD: jax.Array, valid_BT: Valid = None) -> jax.Array:
        x_BTD = x_BTD.astype(jnp.float32)
        alpha = self.param('alpha', nn.initializers.constant(self.alpha), (), jnp.float32)
        scale_D = self.param('scale', nn.initializers.ones_init(), x_BTD.shape[-1:])
        bias_D = self.param('bias', nn.initializers.zeros_init(), x_BTD.shape[-1:])
        return jnp.tanh(alpha * x_BTD) * scale_D[None, None] + bias_D[None, None]

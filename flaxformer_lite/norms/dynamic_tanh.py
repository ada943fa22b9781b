"""Dynamic tanh (Zhu et al. 2025, "Transformers without Normalization")."""

import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.norms.base import Norm
from flaxformer_lite.validation import Positive


class DynamicTanh(Norm):
    """tanh(α x) ⊙ γ + β with one learned α and no statistics.

    Source: Zhu et al. 2025. Use it to test whether a norm needs statistics.

    Attributes:
      alpha: Initial value of α.

    Examples:
      >>> import flaxformer_lite as fl
      >>> norm = fl.norms.DynamicTanh()
      >>> model = fl.Transformer(vocab_size=100, norm=norm)
    """

    alpha: Positive = 0.5

    def normalize(self, x_BTD):
        alpha = self.param('alpha', nn.initializers.constant(self.alpha), ())
        return jnp.tanh(alpha * x_BTD)

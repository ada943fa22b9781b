"""The paper's residual connection: normalise the sum (§3.1, §5.4)."""

import jax
from flax import linen as nn


class PostNorm(nn.Module):
    """LayerNorm(x + Dropout(f(x)))."""

    norm: nn.Module
    dropout: nn.Module

    def before(self, x_BTD: jax.Array) -> jax.Array:
        return x_BTD

    def after(self, x_BTD: jax.Array, y_BTD: jax.Array) -> jax.Array:
        return self.norm(x_BTD + self.dropout(y_BTD))

    def finish(self, x_BTD: jax.Array) -> jax.Array:
        return x_BTD

"""Normalise the branch and leave the stream alone (Xiong et al. 2020)."""

import jax
from flax import linen as nn


class PreNorm(nn.Module):
    """x + Dropout(f(LayerNorm(x))), and one norm more at the end of the stack."""

    norm: nn.Module
    dropout: nn.Module

    def before(self, x_BTD: jax.Array) -> jax.Array:
        return self.norm(x_BTD)

    def after(self, x_BTD: jax.Array, y_BTD: jax.Array) -> jax.Array:
        return x_BTD + self.dropout(y_BTD)

    def finish(self, x_BTD: jax.Array) -> jax.Array:
        return self.norm(x_BTD)

"""Layer normalisation (Ba et al. 2016; paper §3.1)."""

import jax
import jax.numpy as jnp
from flax import linen as nn


class Layer(nn.Module):
    """(x − E x) / √(Var x + ε) · γ + β over features, the variance biased, in float32."""

    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        x_BTD = x_BTD.astype(jnp.float32)
        scale_D = self.param('scale', nn.initializers.ones_init(), x_BTD.shape[-1:])
        bias_D = self.param('bias', nn.initializers.zeros_init(), x_BTD.shape[-1:])
        x_BTD = x_BTD - x_BTD.mean(-1, keepdims=True)
        variance = jnp.square(x_BTD).mean(-1, keepdims=True)
        x_BTD = x_BTD * jax.lax.rsqrt(variance + self.epsilon)
        return x_BTD * scale_D[None, None] + bias_D[None, None]

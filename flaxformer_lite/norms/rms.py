"""Root mean square normalisation (Zhang and Sennrich 2019)."""

import jax
import jax.numpy as jnp
from flax import linen as nn


class Rms(nn.Module):
    """x / √(E x² + ε) · γ over features, in float32."""

    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        x_BTD = x_BTD.astype(jnp.float32)
        scale_D = self.param('scale', nn.initializers.ones_init(), x_BTD.shape[-1:])
        mean_square = jnp.square(x_BTD).mean(-1, keepdims=True)
        return x_BTD * jax.lax.rsqrt(mean_square + self.epsilon) * scale_D[None, None]

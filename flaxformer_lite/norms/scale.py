"""Scale normalisation (Nguyen and Salazar 2019, "Transformers without Tears")."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.ranges import Checked, Epsilon


class Scale(Checked, nn.Module):
    """g · x / ‖x‖ over features, one learned g, which starts at √d_model; in float32."""

    epsilon: Epsilon = 1e-6

    @nn.compact
    def __call__(self, x_BTD, valid_BT=None):
        x_BTD = x_BTD.astype(jnp.float32)
        g = self.param('scale', nn.initializers.constant(x_BTD.shape[-1] ** 0.5), ())
        square = jnp.square(x_BTD).sum(-1, keepdims=True)
        return g * x_BTD * jax.lax.rsqrt(square + self.epsilon)

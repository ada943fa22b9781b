"""Kaiming initializer (He et al. 2015, equation 10)."""

import jax
import jax.numpy as jnp

from flaxformer_lite.init.base import Init


class Kaiming(Init):
    """N(0, 2 / fan_in), which preserves the mean square through a ReLU.

    Source: He et al. 2015. Use it to compare initializations.

    Examples:
      >>> import flaxformer_lite as fl
      >>> model = fl.Transformer(vocab_size=100, initializer=fl.init.Kaiming())
    """

    def matrix(self, key, fan_in, fan_out, name):
        std = (2 / fan_in) ** 0.5
        return std * jax.random.normal(key, (fan_in, fan_out), jnp.float32)

"""Initializer for `residual/deepnorm.py` (Wang et al. 2022, "DeepNet", figure 2)."""

import jax
import jax.numpy as jnp

from flaxformer_lite.init.base import Init


class DeepNorm(Init):
    """Xavier, scaled by β for all matrices except queries and keys.

    β = 0.87 (N⁴ M)^(−1/16) in an encoder of N layers and (12 M)^(−1/4) in a decoder of
    M layers. In a single stack of N layers, β = (8 N)^(−1/4). Source: Wang et al. 2022.
    It is the default of `residual.DeepNorm`, for stacks of a hundred layers.
    """

    def matrix(self, key, fan_in, fan_out, name):
        std = (2 / (fan_in + fan_out)) ** 0.5
        if name not in ('query', 'key'):
            std *= self.beta()
        return std * jax.random.normal(key, (fan_in, fan_out), jnp.float32)

    def beta(self) -> float:
        """Factor of matrices that feed the residual stream."""
        encoder = self.sizes.encoder_layers
        decoder = self.sizes.decoder_layers
        if self.sizes.role == 'encoder':
            return 0.87 * (encoder**4 * decoder) ** (-1 / 16)
        if self.sizes.role == 'decoder':
            return (12 * decoder) ** -0.25
        return (8 * self.sizes.num_layers) ** -0.25

"""One normal distribution for all matrices (Radford et al. 2018, "GPT")."""

import jax
import jax.numpy as jnp

from flaxformer_lite.init.base import Init
from flaxformer_lite.validation import Positive


class Normal(Init):
    """N(0, std²) for every shape."""

    std: Positive = 0.02

    def matrix(self, key, fan_in, fan_out, name):
        return self.std * jax.random.normal(key, (fan_in, fan_out), jnp.float32)

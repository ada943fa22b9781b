"""One normal distribution for all matrices (Radford et al. 2018, "GPT")."""

import jax
import jax.numpy as jnp

from flaxformer_lite.init.base import Init
from flaxformer_lite.validation import Positive


class Normal(Init):
    """N(0, std²) for every shape. Use it to train as GPT and BERT were.

    Examples:
      >>> import flaxformer_lite as fl
      >>> model = fl.Transformer(vocab_size=9, initializer=fl.init.Normal(std=0.01))
    """

    std: Positive = 0.02

    def matrix(self, key, fan_in, fan_out, name):
        return self.std * jax.random.normal(key, (fan_in, fan_out), jnp.float32)

"""Base class of initializers."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from flaxformer_lite.sizes import Sizes
from flaxformer_lite.validation import FrozenDataclass


class Init(FrozenDataclass):
    """Initializer with embeddings from N(0, 1 / d_model). Variants define matrices."""

    set_by_model: ClassVar[tuple[str, ...]] = ('sizes',)
    sizes: Sizes = Sizes()

    @property
    def logit_scale(self) -> float:
        """Factor of the logits."""
        return 1.0

    def lr_multiplier(self, path: tuple[str, ...]) -> float:
        """Returns the learning-rate multiplier of a parameter, given its path."""
        return 1.0

    def matrix(self, key: jax.Array, fan_in: int, fan_out: int, name: str) -> jax.Array:
        """Returns a float32 matrix (fan_in, fan_out) for layer `name`: query, up, …"""
        raise NotImplementedError

    def embedding(self, key: jax.Array, vocab_size: int, d_model: int) -> jax.Array:
        """Returns float32 embeddings (vocab_size, d_model)."""
        standard_normal = jax.random.normal(key, (vocab_size, d_model), jnp.float32)
        return d_model**-0.5 * standard_normal


def uniform_with_variance(
    key: jax.Array, fan_in: int, fan_out: int, variance: float
) -> jax.Array:
    """Samples a float32 matrix (fan_in, fan_out) uniformly from ±√(3 variance)."""
    limit = (3 * variance) ** 0.5
    return jax.random.uniform(key, (fan_in, fan_out), jnp.float32, -limit, limit)

"""What initialisations have in common."""

import dataclasses

import jax
import jax.numpy as jnp

from flaxformer_lite.ranges import Checked


@dataclasses.dataclass(frozen=True)
class Init(Checked):
    """Embeddings N(0, 1 / d_model), to be scaled by √d_model; a variant says how matrices begin."""

    @property
    def logits(self) -> float:
        """What logits are multiplied by."""
        return 1.0

    def rate(self, path: tuple[str, ...]) -> float:
        """What the learning rate of a parameter is multiplied by: `('embedding',)`, say."""
        return 1.0

    def matrix(self, key: jax.Array, fan_in: int, fan_out: int, name: str) -> jax.Array:
        """A matrix, float32 (fan_in, fan_out), of the layer `name`: query, key, up, gate, …"""
        raise NotImplementedError

    def embedding(self, key: jax.Array, vocab: int, d_model: int) -> jax.Array:
        """float32 (vocab, d_model)."""
        return d_model**-0.5 * jax.random.normal(key, (vocab, d_model), jnp.float32)


def uniform(key: jax.Array, fan_in: int, fan_out: int, variance: float) -> jax.Array:
    """Uniform in ±√(3 variance)."""
    limit = (3 * variance) ** 0.5
    return jax.random.uniform(key, (fan_in, fan_out), jnp.float32, -limit, limit)

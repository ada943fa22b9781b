"""What initialisations have in common."""

import dataclasses

import jax
import jax.numpy as jnp

from flaxformer_lite.ranges import Checked
from flaxformer_lite.sizes import Sizes


@dataclasses.dataclass(frozen=True)
class Init(Checked):
    """First values: embeddings N(0, 1 / d_model); a variant says what matrices are.

    The embeddings are to be multiplied by √d_model (§3.4).

    Attributes:
      sizes: of the stack whose parameters are initialised.
    """

    sizes: Sizes = Sizes()

    @property
    def logit_scale(self) -> float:
        """What the logits are multiplied by."""
        return 1.0

    def lr_multiplier(self, path: tuple[str, ...]) -> float:
        """What a parameter's learning rate is multiplied by.

        Args:
          path: the parameter's, such as ('embedding',).
        """
        return 1.0

    def matrix(self, key: jax.Array, fan_in: int, fan_out: int, name: str) -> jax.Array:
        """A matrix, float32 (fan_in, fan_out), of a layer `name`: query, up, …"""
        raise NotImplementedError

    def embedding(self, key: jax.Array, vocab_size: int, d_model: int) -> jax.Array:
        """float32 (vocab_size, d_model)."""
        standard_normal = jax.random.normal(key, (vocab_size, d_model), jnp.float32)
        return d_model**-0.5 * standard_normal


def uniform_with_variance(
    key: jax.Array, fan_in: int, fan_out: int, variance: float
) -> jax.Array:
    """float32 (fan_in, fan_out), uniform in ±√(3 variance)."""
    limit = (3 * variance) ** 0.5
    return jax.random.uniform(key, (fan_in, fan_out), jnp.float32, -limit, limit)

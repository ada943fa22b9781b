"""Set encoder for reinforcement learning (Zambaldi et al. 2019)."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.layers.dense.base import Dense
from flaxformer_lite.layers.stack import Stack
from flaxformer_lite.masks import AttentionContext


class EntityEncoder(nn.Module):
    """Permutation-equivariant encoder of entities that attend to each other."""

    embedding: Dense
    encoder: Stack

    def __call__(self, features_BTF: jax.Array, present_BT: jax.Array) -> jax.Array:
        """Encodes sets of up to T entities.

        Args:
          present_BT: bool, False for absent entities.

        Returns:
          float32 BTD, with zeros for absent entities.
        """
        context = AttentionContext(
            positions_BT=jnp.zeros(present_BT.shape, jnp.int32),
            mask_BHTS=present_BT[:, None, None],
            valid_BT=present_BT,
        )
        y_BTD, _ = self.encoder(self.embedding(features_BTF), context)
        return jnp.where(present_BT[..., None], y_BTD, 0.0)

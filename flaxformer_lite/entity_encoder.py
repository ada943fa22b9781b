"""Encodes a set of entities, for reinforcement learning (Zambaldi et al. 2019)."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.layers.dense import Dense
from flaxformer_lite.layers.stack import Stack
from flaxformer_lite.masks import AttentionContext


class EntityEncoder(nn.Module):
    """Encodes each entity of a set in view of the others.

    The order of the entities means nothing: permuting them permutes the result.

    Attributes:
      embedding: features to d_model.
      encoder: a stack without positions.
    """

    embedding: Dense
    encoder: Stack

    def __call__(self, features_BTF: jax.Array, present_BT: jax.Array) -> jax.Array:
        """Encodes sets of up to T entities.

        Args:
          features_BTF: float, the features of each entity.
          present_BT: bool, which entities are there.

        Returns:
          float32 BTD, zeros for entities that are not there.
        """
        context = AttentionContext(
            positions_BT=jnp.zeros(present_BT.shape, jnp.int32),
            mask_BHTS=present_BT[:, None, None],
            valid_BT=present_BT,
        )
        y_BTD, _ = self.encoder(self.embedding(features_BTF), context)
        return jnp.where(present_BT[..., None], y_BTD, 0.0)

"""An encoder of a set of entities, as reinforcement learning uses it (Zambaldi et al. 2019)."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.dense import Dense
from flaxformer_lite.shapes import Places
from flaxformer_lite.stack import Stack


class EntityEncoder(nn.Module):
    """Each entity, seen among the others. Their order means nothing: it is equivariant to it.

    The encoder is a stack without positions.
    """

    embedding: Dense
    encoder: Stack

    def __call__(self, features_BTF: jax.Array, present_BT: jax.Array) -> jax.Array:
        """What is known of each, and which are there, bool → float32 BTD, zeros for the absent."""
        pos_BT, mask_BHTS = (
            jnp.zeros(present_BT.shape, jnp.int32),
            present_BT[:, None, None],
        )
        places = Places(pos_BT, present_BT, mask_BHTS)
        y_BTD, _ = self.encoder(self.embedding(features_BTF), places)
        return jnp.where(present_BT[..., None], y_BTD, 0.0)

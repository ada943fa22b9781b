"""Set encoder for reinforcement learning (Zambaldi et al. 2019)."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.layers.dense.base import Dense
from flaxformer_lite.layers.stack import Stack
from flaxformer_lite.masks import AttentionContext


class EntityEncoder(nn.Module):
    """Encoder of a set of entities that attend to each other.

    It is permutation-equivariant: permuting the entities permutes the result.

    Attributes:
      embedding: Projects features to d_model.
      encoder: A stack without positions.

    Examples:
      >>> from flaxformer_lite import build
      >>> sizes = {'d_model': 8, 'num_layers': 1, 'num_heads': 2, 'd_ff': 16}
      >>> encoder = build.entity_encoder(sizes)

      >>> features_BTF, present_BT = jnp.ones((1, 2, 3)), jnp.array([[True, False]])
      >>> arguments = jax.random.key(0), features_BTF, present_BT

      >>> y_BTD, _ = jax.eval_shape(encoder.init_with_output, *arguments)
      >>> y_BTD.shape
      (1, 2, 8)
    """

    embedding: Dense
    encoder: Stack

    def __call__(self, features_BTF: jax.Array, present_BT: jax.Array) -> jax.Array:
        """Encodes sets of up to T entities.

        Args:
          features_BTF: Float features of each entity.
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

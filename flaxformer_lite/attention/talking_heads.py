"""Talking-heads attention (Shazeer et al. 2020)."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.attention.base import Attention
from flaxformer_lite.ops.masked_softmax import masked_softmax


class TalkingHeads(Attention):
    """Talking-heads attention: P' · softmax(P · scores), where P and P' mix heads.

    Both are learned and initialized near the identity.

    Source: Shazeer et al. 2020. Use it to test whether heads benefit from the scores of
    others.

    Examples:
      >>> import flaxformer_lite as fl
      >>> attention = fl.attention.TalkingHeads()
      >>> model = fl.Transformer(vocab_size=100, attention=attention)
    """

    per_head = True

    @nn.compact
    def weights(self, scores_BHTS, mask_BHTS):
        def near_identity(key, shape):
            return jnp.eye(shape[0]) + 0.1 * jax.random.normal(key, shape)

        num_heads = scores_BHTS.shape[1]
        before_HI = self.param('before', near_identity, (num_heads, num_heads))
        after_IJ = self.param('after', near_identity, (num_heads, num_heads))
        scores_BITS = jnp.einsum('bhts,hi->bits', scores_BHTS, before_HI)
        weights_BITS = masked_softmax(scores_BITS, mask_BHTS)
        return jnp.einsum('bits,ij->bjts', weights_BITS, after_IJ)

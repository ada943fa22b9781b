"""Talking-heads attention (Shazeer et al. 2020)."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.attention.base import Attention, masked_softmax


class TalkingHeads(Attention):
    """softmax(P · scores) then P' · weights, P and P' across heads and learned.

    Both start near the identity, where heads do not talk.
    """

    per_head = True

    @nn.compact
    def weights(self, s_BHTS, mask_BHTS):
        def near_identity(key, shape):
            return jnp.eye(shape[0]) + 0.1 * jax.random.normal(key, shape)

        shape = s_BHTS.shape[1], s_BHTS.shape[1]
        before_HI = self.param('before', near_identity, shape)
        after_IJ = self.param('after', near_identity, shape)
        s_BITS = jnp.einsum('bhts,hi->bits', s_BHTS, before_HI)
        return jnp.einsum('bits,ij->bjts', masked_softmax(s_BITS, mask_BHTS), after_IJ)

"""Softmax attention with a sink in the denominator (Xiao et al. 2023; Miller 2023)."""

import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.attention.base import ScaledDotProduct
from flaxformer_lite.layers.dropout import Dropout
from flaxformer_lite.ops.masked_softmax import masked_softmax


class Sink(ScaledDotProduct):
    """Softmax attention whose weights may sum to less than 1.

    w_s = exp(score_s) / (exp(b_h) + Σ exp(score)), where b_h is a logit of head h.
    gpt-oss (OpenAI 2025) learns b_h. With b_h = 0 this is "softmax off by one" (Miller
    2023).

    Use it to let a head attend to nothing.

    Attributes:
      learned: Whether b_h is a parameter, initialized to 0. If False, it stays 0.

    Examples:
      >>> import flaxformer_lite as fl
      >>> attention = fl.attention.Sink()
      >>> model = fl.Transformer(vocab_size=100, attention=attention)
    """

    per_head = True
    unsupported = ('temperature',)
    learned: bool = True

    @nn.compact
    def weights(self, scores_BHTS, mask_BHTS):
        sink_H = jnp.zeros(scores_BHTS.shape[1])
        if self.learned:
            sink_H = self.param('sink', nn.initializers.zeros, sink_H.shape)
        scores_BHTS = scores_BHTS / self.temperature
        # The sink is one more key, which every query may attend to.
        shape_BHT1 = (*scores_BHTS.shape[:3], 1)
        sink_BHT1 = jnp.broadcast_to(sink_H[None, :, None, None], shape_BHT1)
        scores_BHTS = jnp.concatenate([scores_BHTS, sink_BHT1], axis=-1)
        padding = [(0, 0), (0, 0), (0, 0), (0, 1)]
        mask_BHTS = jnp.pad(mask_BHTS, padding, constant_values=True)
        weights_BHTS = masked_softmax(scores_BHTS, mask_BHTS)[..., :-1]
        return Dropout(self.dropout)(weights_BHTS)

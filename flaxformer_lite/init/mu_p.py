"""Maximal update parametrisation (Yang et al. 2021, "Tensor Programs V", table 8)."""

import dataclasses

from flaxformer_lite.init.base import Init, uniform_with_variance
from flaxformer_lite.ranges import Size

# What some attentions have of their own, and the weights of recurrent cells.
ATTENTION_WEIGHTS = ('query', 'key', 'form', 'energy')


@dataclasses.dataclass(frozen=True)
class MuP(Init):
    """Xavier at the base width; at m times it, rates and scales for like Adam updates.

    | | starts as | learning rate | |
    |---|---|---|---|
    | matrices | Xavier | 1 / m | |
    | query | Xavier / √m | m^−1.5 | so that scores are as if divided by d_k |
    | embeddings | N(0, 1 / d_model) | 1 / √m | they are multiplied by √d_model |
    | logits | times 1 / √m | | |
    | biases, norms | as ever | 1 | |

    m is d_model / base. d_ff is to grow with d_model. d_k is taken to grow with it,
    too; the row of the query is for that. Where d_k is given, and stays the same,
    queries are like other matrices. The schedule of the learning rate should not depend
    on d_model: `cosine` does not, `noam` does.

    Attributes:
      base: the d_model at which the learning rate was found.
    """

    base: Size = 128

    @property
    def width_ratio(self) -> float:
        """m."""
        return self.sizes.d_model / self.base

    @property
    def key_width_ratio(self) -> float:
        """What d_k is of that at the base width."""
        return self.width_ratio if self.sizes.d_k_derived else 1.0

    @property
    def logit_scale(self):
        return self.width_ratio**-0.5

    def matrix(self, key, fan_in, fan_out, name):
        matrix = uniform_with_variance(key, fan_in, fan_out, 2 / (fan_in + fan_out))
        if name == 'query':
            matrix = self.key_width_ratio**-0.5 * matrix
        return matrix

    def lr_multiplier(self, path):
        if path == ('output_bias',):
            return 1.0
        if len(path) == 1:  # the embeddings, which belong to no layer
            return self.width_ratio**-0.5
        layer, name = path[-2:]
        if name == 'kernel' and layer == 'query':
            return self.width_ratio**-1 * self.key_width_ratio**-0.5
        if name == 'kernel':
            return self.width_ratio**-1
        if name in ATTENTION_WEIGHTS and 'core_attention' in path:
            return self.key_width_ratio**-1  # from d_k to d_k
        if name in ATTENTION_WEIGHTS:
            return self.width_ratio**-1
        return 1.0

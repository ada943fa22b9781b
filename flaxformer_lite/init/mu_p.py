"""Maximal update parametrization (Yang et al. 2021, "Tensor Programs V", table 8)."""

from flaxformer_lite.init.base import Init, uniform_with_variance
from flaxformer_lite.validation import Size

# Weights of some attention variants and of recurrent cells.
ATTENTION_WEIGHTS = ('query', 'key', 'form', 'energy')


class MuP(Init):
    """Xavier at the base width; at m times it, rescaled for similar Adam updates.

    | | initialization | learning rate | |
    |---|---|---|---|
    | matrices | Xavier | 1 / m | |
    | query | Xavier / √m | m^−1.5 | scores are as if divided by d_k |
    | embeddings | N(0, 1 / d_model) | 1 / √m | multiplied by √d_model |
    | logits | times 1 / √m | | |
    | biases, norms | unchanged | 1 | |

    m is d_model / base. d_ff must grow with d_model. With a fixed d_k, queries are like
    other matrices. Use a learning-rate schedule that doesn't depend on d_model, such as
    `cosine`.

    Use it to tune the learning rate with a small model, and train a wider one with it.

    Examples:
      >>> import flaxformer_lite as fl
      >>> initializer = fl.init.MuP(base=64)
      >>> model = fl.Transformer(vocab_size=9, d_model=256, initializer=initializer)

    Attributes:
      base: The d_model for which the learning rate was tuned.
    """

    base: Size = 128

    @property
    def width_ratio(self) -> float:
        """m, the ratio of d_model to `base`."""
        return self.sizes.d_model / self.base

    @property
    def key_width_ratio(self) -> float:
        """Ratio of d_k to its value at the base width."""
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
        if len(path) == 1:  # embeddings, which belong to no layer
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

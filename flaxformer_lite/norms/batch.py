"""Batch normalization (Ioffe and Szegedy 2015) over the tokens of a batch."""

import jax
import jax.numpy as jnp

from flaxformer_lite.masks import padding_mask
from flaxformer_lite.norms.base import Norm
from flaxformer_lite.validation import Epsilon, Rate


class BatchNorm(Norm):
    """(x − μ) / √(σ² + ε) · γ + β, with μ and σ² per feature over non-padding tokens.

    Training uses batch statistics and updates running averages in `batch_stats`.
    Evaluation and decoding use the averages.

    Source: Ioffe and Szegedy 2015, algorithm 1. Use it to compare with `LayerNorm`;
    rows of a batch then depend on each other.

    Attributes:
      momentum: Weight of the old running averages in an update.

    Examples:
      >>> import flaxformer_lite as fl
      >>> norm = fl.norms.BatchNorm()
      >>> model = fl.Transformer(vocab_size=100, norm=norm)
    """

    momentum: Rate = 0.99
    epsilon: Epsilon = 1e-5

    def normalize(self, x_BTD):
        features = x_BTD.shape[-1:]
        running_mean = self.variable('batch_stats', 'mean', jnp.zeros, features)
        running_variance = self.variable('batch_stats', 'variance', jnp.ones, features)
        mean_D = running_mean.value
        variance_D = running_variance.value
        trains = self.is_mutable_collection('batch_stats')
        if trains and not self.is_initializing():
            mean_D, variance_D, count = _moments(x_BTD)
            # A batch, or part of one, that is all padding leaves the averages
            # unchanged.
            share = jnp.where(count > 0, 1 - self.momentum, 0.0)
            mean_change_D = mean_D - running_mean.value
            variance_change_D = variance_D - running_variance.value
            running_mean.value += share * mean_change_D
            running_variance.value += share * variance_change_D
        centered_BTD = x_BTD - mean_D[None, None]
        root_D = jax.lax.rsqrt(variance_D + self.epsilon)
        return centered_BTD * root_D[None, None]


def _moments(x_BTD):
    valid_BT = padding_mask(x_BTD.shape[:2]).astype(jnp.float32)
    count = valid_BT.sum()
    weight_BT = valid_BT / jnp.maximum(count, 1.0)
    weight_BT1 = weight_BT[..., None]
    mean_D = (weight_BT1 * x_BTD).sum((0, 1))
    centered_BTD = x_BTD - mean_D[None, None]
    square_BTD = jnp.square(centered_BTD)
    variance_D = (weight_BT1 * square_BTD).sum((0, 1))
    return mean_D, variance_D, count

"""Batch normalisation (Ioffe and Szegedy 2015), over the tokens of a batch."""

import jax
import jax.numpy as jnp

from flaxformer_lite.norms.base import Norm
from flaxformer_lite.ranges import Epsilon, Rate


class Batch(Norm):
    """(x − μ) / √(σ² + ε) · γ + β, each feature's μ and σ² over all tokens; padding is none.

    While training, of the batch, which is where tokens of one sentence see those of another; else
    of the running means that training leaves in the collection `statistics`. So it is in decoding,
    where there is no batch to speak of: a sentence translates alone as among others. A step leaves
    `momentum` of the running means.
    """

    momentum: Rate = 0.99
    epsilon: Epsilon = 1e-5

    def normalized(self, x_BTD, valid_BT):
        mean = self.variable('statistics', 'mean', jnp.zeros, x_BTD.shape[-1:])
        variance = self.variable('statistics', 'variance', jnp.ones, x_BTD.shape[-1:])
        mean_D, variance_D = mean.value, variance.value
        if self.is_mutable_collection('statistics') and not self.is_initializing():
            w_BT1 = jnp.ones(x_BTD.shape[:2]) if valid_BT is None else valid_BT * 1.0
            w_BT1 = (w_BT1 / jnp.maximum(w_BT1.sum(), 1.0))[..., None]
            mean_D = (w_BT1 * x_BTD).sum((0, 1))
            variance_D = (w_BT1 * jnp.square(x_BTD - mean_D[None, None])).sum((0, 1))
            # Nothing is learnt of a batch, or a part of one, that is all padding.
            share = jnp.where(w_BT1.sum() > 0, 1 - self.momentum, 0.0)
            mean.value += share * (mean_D - mean.value)
            variance.value += share * (variance_D - variance.value)
        return (x_BTD - mean_D[None, None]) * jax.lax.rsqrt(variance_D + self.epsilon)[
            None, None
        ]

"""The initialisation of `residual/deepnorm.py` (Wang et al. 2022, "DeepNet", figure 2)."""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp

from flaxformer_lite.init.base import Init
from flaxformer_lite.ranges import Choices, Range


@dataclasses.dataclass(frozen=True)
class Deepnorm(Init):
    """Xavier, and β times that for all that goes into the stream: values, outputs, feed-forward.

    β = 0.87 (N⁴ M)^(−1/16) in an encoder of N layers and (12 M)^(−1/4) in a decoder of M;
    (8 N)^(−1/4) where there is only one of them.

    Attributes:
      stack: 'encoder' or 'decoder'.
      encoder_layers, decoder_layers: N and M.
    """

    stack: Annotated[str, Choices('encoder', 'decoder')]
    encoder_layers: Annotated[int, Range(at_least=0)]
    decoder_layers: Annotated[int, Range(at_least=0)]

    def matrix(self, key, fan_in, fan_out, name):
        std = (2 / (fan_in + fan_out)) ** 0.5 * (
            1.0 if name in ('query', 'key') else self.beta()
        )
        return std * jax.random.normal(key, (fan_in, fan_out), jnp.float32)

    def beta(self) -> float:
        n, m = self.encoder_layers, self.decoder_layers
        if not (n and m):
            return (8 * (n or m)) ** -0.25
        return (
            0.87 * (n**4 * m) ** (-1 / 16)
            if self.stack == 'encoder'
            else (12 * m) ** -0.25
        )

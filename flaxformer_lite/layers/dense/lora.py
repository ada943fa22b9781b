"""Low-rank adapters of matrices that stay fixed."""

import math
import re
from collections.abc import Mapping
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.layers.dense.base import Dense
from flaxformer_lite.ops.matmul import matmul
from flaxformer_lite.validation import Range, Regex, Size


class LoRADense(Dense):
    """y = x W + s (x A) B, with s = α / r. Only A and B are trained.

    A is D × r and starts uniform within ±1/√D. B is r × F and starts at 0. Sources: Hu
    et al. 2021, equation 3; Kalajdzievski 2023 for `stabilized`.

    Attributes:
      rank: r.
      alpha: α.
      on: Regular expression of the paths of the matrices with an adapter.
      stabilized: Whether s = α / √r.
    """

    trained_parameters: ClassVar[tuple[str, ...]] = ('lora_a', 'lora_b')

    rank: Size = 4
    alpha: Annotated[float, Range(above=0)] = 16.0
    on: Regex = 'query|value'
    stabilized: bool = False

    @property
    def scale(self) -> float:
        """The factor s."""
        return self.alpha / (math.sqrt(self.rank) if self.stabilized else self.rank)

    def product(self, x_ND: jax.Array, w_DF: jax.Array) -> jax.Array:
        y_NF = super().product(x_ND, w_DF)
        path = '/'.join(self.path)
        if not re.search(self.on, path):
            return y_NF
        d, f = w_DF.shape
        if self.rank > min(d, f):
            raise ValueError(
                f'model.dense: rank={self.rank} exceeds the rank of {path}, '
                f'{min(d, f)}. Lower it, or exclude the matrix by on.'
            )
        # The variance of a uniform distribution within ±b is b² / 3.
        a_init = nn.initializers.variance_scaling(1 / 3, 'fan_in', 'uniform')
        a_DR = self.param('lora_a', a_init, (d, self.rank))
        b_RF = self.param('lora_b', nn.initializers.zeros, (self.rank, f))
        x_NR = matmul(x_ND, a_DR.astype(self.dtype)).astype(self.dtype)
        return y_NF + self.scale * matmul(x_NR, b_RF.astype(self.dtype))

    def merge(self, params: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Returns the parameters of a plain layer: W + s A B."""
        merged = dict(params)
        if 'lora_a' not in merged:
            return merged
        a, b = merged.pop('lora_a'), merged.pop('lora_b')
        update = self.scale * jnp.matmul(a, b, precision='highest')
        kernel = merged['kernel']
        merged['kernel'] = kernel + update.reshape(kernel.shape)
        return merged

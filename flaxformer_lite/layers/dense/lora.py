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


class LoRA(Dense):
    """y = x V with V = W + s A B and s = α / r. Only A and B are trained.

    A is D × r and starts uniform within ±1/√D. B is r × F and starts at 0. With `dora`,
    y = x V m / ‖V‖, by column: m = ‖W‖ + δ is trained, δ starts at 0, and gradients
    treat ‖V‖ as constant. Sources: Hu et al. 2021, equation 3; Kalajdzievski 2023 for
    `stabilized`; Liu et al. 2024, equations 5 and 11, for `dora`.

    Use it to fine-tune a large model with little memory. `adapters.frozen_paths` names
    what stays fixed, and `adapters.merge` returns V as a plain matrix.

    Attributes:
      rank: r.
      alpha: α.
      on: Regular expression of the paths of the matrices with an adapter.
      stabilized: Whether s = α / √r.
      dora: Whether the magnitude of each column is trained, too.

    Examples:
      >>> import flaxformer_lite as fl
      >>> model = fl.Transformer(vocab_size=100, dense=fl.dense.LoRA(rank=8))
    """

    trained_parameters: ClassVar[tuple[str, ...]] = ('lora_a', 'lora_b', 'lora_m')

    rank: Size = 4
    alpha: Annotated[float, Range(above=0)] = 16.0
    on: Regex = 'query|value'
    stabilized: bool = False
    dora: bool = False

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
                f'LoRA.rank={self.rank} exceeds the rank of {path}, {min(d, f)}. Lower '
                'it, or change LoRA.on.'
            )
        # The variance of a uniform distribution within ±b is b² / 3.
        a_init = nn.initializers.variance_scaling(1 / 3, 'fan_in', 'uniform')
        a_DR = self.param('lora_a', a_init, (d, self.rank))
        b_RF = self.param('lora_b', nn.initializers.zeros, (self.rank, f))
        x_NR = matmul(x_ND, a_DR.astype(self.dtype)).astype(self.dtype)
        y_NF += self.scale * matmul(x_NR, b_RF.astype(self.dtype))
        if not self.dora:
            return y_NF
        delta_F = self.param('lora_m', nn.initializers.zeros, (f,))
        w_DF = w_DF.astype(jnp.float32)
        v_DF = w_DF + self.scale * matmul(a_DR, b_RF)
        return y_NF * _over_norms(_column_norms(w_DF) + delta_F, v_DF)[None]

    def merge(self, params: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        merged = dict(params)
        if 'lora_a' not in merged:
            return merged
        a, b = merged.pop('lora_a'), merged.pop('lora_b')
        update = self.scale * jnp.matmul(a, b, precision='highest')
        kernel = merged['kernel']
        v = kernel.reshape(update.shape) + update
        if self.dora:
            v *= _over_norms(self.magnitude(merged), v)[..., None, :]
            del merged['lora_m']
        merged['kernel'] = v.reshape(kernel.shape)
        return merged

    def magnitude(self, params: Mapping[str, jax.Array]) -> jax.Array:
        """Returns m of a layer with `dora`, possibly stacked as for `merge`."""
        delta = params['lora_m']
        kernel = params['kernel'].reshape(*delta.shape[:-1], -1, delta.shape[-1])
        return _column_norms(kernel) + delta


def _column_norms(matrix: jax.Array) -> jax.Array:
    return jnp.linalg.norm(matrix, axis=-2)


def _over_norms(m: jax.Array, v: jax.Array) -> jax.Array:
    """Returns m / ‖V‖ by column, with ‖V‖ constant, or m if ‖V‖ is 0."""
    norms = jax.lax.stop_gradient(_column_norms(v))
    return m / jnp.where(norms == 0, 1.0, norms)

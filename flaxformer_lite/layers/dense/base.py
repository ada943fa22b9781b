"""Linear layers: operands in the compute dtype, sums and results in float32."""

import math
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from flaxformer_lite.init.base import Init
from flaxformer_lite.init.xavier import Xavier
from flaxformer_lite.ops.matmul import matmul
from flaxformer_lite.sharding import gather
from flaxformer_lite.validation import Checked, Size


class Dense(Checked, nn.Module):
    """Linear layer y = x W + b over the last `input_axes` axes of x.

    One instance is the template of a model's matrices, which are copies with their own
    `features` (`flax.linen.Module.copy`). To change what every matrix computes,
    override `product`.

    Attributes:
      trained_parameters: Names of the only parameters that a run trains, such as those
        of an adapter. Empty for all parameters.
      features: Output axes, such as (heads, d_k). Together they are one fan-out.
      input_axes: Number of contracted trailing axes.
      bias: Whether to add b, initially 0.
      dtype: Compute dtype. Parameters and results are float32.
    """

    set_by_model: ClassVar[tuple[str, ...]] = (
        'features',
        'input_axes',
        'bias',
        'dtype',
        'kernel_init',
    )
    trained_parameters: ClassVar[tuple[str, ...]] = ()

    features: tuple[int, ...] = ()
    input_axes: Size = 1
    bias: bool = True
    dtype: DTypeLike = jnp.float32
    kernel_init: Init = Xavier()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        outer_axes = x.ndim - self.input_axes
        outer = x.shape[:outer_axes]
        inner = x.shape[outer_axes:]
        fan_in = math.prod(inner)
        fan_out = math.prod(self.features)
        name = self.name or ''

        def init(key, shape):
            matrix = self.kernel_init.matrix(key, fan_in, fan_out, name)
            return matrix.reshape(shape)

        kernel = self.param('kernel', init, (*inner, *self.features))
        kernel = gather(kernel.astype(self.dtype), (name, 'kernel'))
        x_ND = x.reshape(-1, fan_in).astype(self.dtype)
        w_DF = kernel.reshape(fan_in, fan_out)
        y_NF = self.product(x_ND, w_DF)
        if self.bias:
            bias = self.param('bias', nn.initializers.zeros, self.features)
            y_NF += bias.reshape(1, fan_out)
        return y_NF.reshape(*outer, *self.features)

    def product(self, x_ND: jax.Array, w_DF: jax.Array) -> jax.Array:
        """Returns x W, float32, for operands in the compute dtype.

        An override may create parameters with `self.param`.
        """
        return matmul(x_ND, w_DF)

    def merge(self, params: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Returns the parameters of a plain layer that computes the same.

        Args:
          params: The layer's own, possibly stacked along a leading axis of layers.
        """
        return dict(params)

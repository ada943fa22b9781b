"""Linear maps: operands in the compute dtype, sums and results in float32."""

import math

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from flaxformer_lite.init.base import Init
from flaxformer_lite.init.xavier import Xavier
from flaxformer_lite.ops.matmul import matmul
from flaxformer_lite.sharding import gather


class Dense(nn.Module):
    """y = x W + b, over the last `input_axes` axes of x, to the axes `features`.

    A model has one of these as a template, with its dtype and its initialisation; each
    matrix is a copy of it with features of its own (`flax.linen.Module.copy`).

    Attributes:
      features: the output's axes, such as (heads, d_k). They count as one fan-out.
      input_axes: how many trailing axes of x are contracted.
      bias: whether b is there; it starts at 0.
      dtype: what x and W are rounded to; parameters and the result are float32.
      kernel_init: the first values of W.
    """

    features: tuple[int, ...] = ()
    input_axes: int = 1
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
        y_NF = matmul(x_ND, w_DF)
        if self.bias:
            bias = self.param('bias', nn.initializers.zeros, self.features)
            y_NF += bias.reshape(1, fan_out)
        return y_NF.reshape(*outer, *self.features)

"""Recurrent cells: operands in the compute dtype, states and gates in float32."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.layers.dense.base import Dense
from flaxformer_lite.ops.matmul import matmul

# One array in a GRU; in an LSTM two, the memory cell and the output.
CellState = jax.Array | tuple[jax.Array, jax.Array]


class Cell(nn.Module):
    """Recurrent cell that computes the products of all gates at once."""

    d_model: int
    dense: Dense

    @nn.nowrap
    def first_state(self, h: jax.Array) -> CellState:
        raise NotImplementedError

    def from_input(self, x: jax.Array, names: str, biased: str) -> list[jax.Array]:
        """Computes W x + b for each gate, float32.

        Args:
          names: One letter per gate.
          biased: Gates that have b.
        """

        def init(key, shape):
            fan_in, fan_out = shape
            return self.dense.kernel_init.matrix(key, fan_in, fan_out, 'cell')

        return self._products(x, 'i', names, biased, init)

    def from_state(self, h: jax.Array, names: str, biased: str) -> list[jax.Array]:
        """Computes U h + b for each gate, float32; U is initialized orthogonally."""

        def init(key, shape):
            return nn.initializers.orthogonal()(key, shape, jnp.float32)

        return self._products(h, 'h', names, biased, init)

    def _products(self, x, side, names, biased, init):
        *outer, fan_in = x.shape
        matrices = []
        biases = []
        for name in names:
            gate = _Gate(self.d_model, init, name in biased, name=side + name)
            matrix, bias = gate(fan_in)
            matrices.append(matrix)
            biases.append(bias)
        dtype = self.dense.dtype
        x_ND = x.reshape(-1, fan_in).astype(dtype)
        w_DF = jnp.concatenate(matrices, -1).astype(dtype)
        y_NF = matmul(x_ND, w_DF)
        y_NF += jnp.concatenate(biases)[None]
        y = y_NF.reshape(*outer, -1)
        return jnp.split(y, len(names), -1)


class _Gate(nn.Module):
    """Kernel and bias of one gate; the bias is a constant 0 unless `biased`."""

    features: int
    kernel_init: nn.initializers.Initializer
    biased: bool

    @nn.compact
    def __call__(self, fan_in: int) -> tuple[jax.Array, jax.Array]:
        kernel = self.param('kernel', self.kernel_init, (fan_in, self.features))
        if not self.biased:
            return kernel, jnp.zeros(self.features)
        return kernel, self.param('bias', nn.initializers.zeros, (self.features,))


class GRU(Cell):
    """Gated recurrent unit (Cho et al. 2014): h ← (1 − z) n + z h.

    n = tanh(W x + r ⊙ (U h + b)). The reset gate r acts after the product U h.
    """

    @nn.nowrap
    def first_state(self, h):
        return h

    @nn.compact
    def __call__(self, h: jax.Array, x: jax.Array) -> tuple[CellState, jax.Array]:
        reset_x, update_x, new_x = self.from_input(x, 'rzn', biased='rzn')
        reset_h, update_h, new_h = self.from_state(h, 'rzn', biased='n')
        reset = jax.nn.sigmoid(reset_x + reset_h)
        update = jax.nn.sigmoid(update_x + update_h)
        new = jnp.tanh(new_x + reset * new_h)
        h = (1 - update) * new + update * h
        return h, h


class LSTM(Cell):
    """LSTM cell: c ← f c + i g, h ← o tanh(c).

    Sources: Hochreiter and Schmidhuber (1997); Gers (2000).
    """

    @nn.nowrap
    def first_state(self, h):
        return h, h

    @nn.compact
    def __call__(self, state: CellState, x: jax.Array) -> tuple[CellState, jax.Array]:
        c, h = state
        of_x = self.from_input(x, 'ifgo', biased='')
        of_h = self.from_state(h, 'ifgo', biased='ifgo')
        i, f, g, o = map(jnp.add, of_x, of_h)
        forget_gate = jax.nn.sigmoid(f)
        input_gate = jax.nn.sigmoid(i)
        c = forget_gate * c + input_gate * jnp.tanh(g)
        output_gate = jax.nn.sigmoid(o)
        h = output_gate * jnp.tanh(c)
        return (c, h), h


CELLS = {'gru': GRU, 'lstm': LSTM}

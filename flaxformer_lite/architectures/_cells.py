"""Recurrent cells: operands in the compute dtype, states and gates in float32."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.dense import Dense, product

State = jax.Array | tuple[jax.Array, jax.Array]


class _Gate(nn.Module):
    """The matrix and the bias of one gate, from the input or from the state."""

    dense: Dense
    is_of_state: bool
    biased: bool

    @nn.compact
    def __call__(self, fan_in: int, fan_out: int) -> tuple[jax.Array, jax.Array]:
        def initial(key, shape):
            if self.is_of_state:
                return nn.initializers.orthogonal()(key, shape, jnp.float32)
            return self.dense.initial.matrix(key, *shape, 'cell')

        w_DF = self.param('kernel', initial, (fan_in, fan_out))
        if not self.biased:
            return w_DF, jnp.zeros(fan_out)
        return w_DF, self.param('bias', nn.initializers.zeros, (fan_out,))


class _Cell(nn.Module):
    """What cells have in common: `begin`, and W x + b of each gate.

    Attributes:
      d_model: the width of the state.
      dense: the pattern of matrices.
    """

    d_model: int
    dense: Dense

    def gates(self, x: jax.Array, side: str, names: str, biased: str) -> list:
        """W x (+ b) of the gates `names`, as one product, float32 each.

        Args:
          side: 'i' for the input's, 'h' for the state's.
          biased: the gates that have a bias on this side.
        """
        made = [
            _Gate(self.dense, side == 'h', name in biased, name=side + name)
            for name in names
        ]
        matrices, biases = zip(
            *(g(x.shape[-1], self.d_model) for g in made), strict=True
        )
        x_ND = x.reshape(-1, x.shape[-1]).astype(self.dense.dtype)
        w_DF = jnp.concatenate(matrices, -1).astype(self.dense.dtype)
        y_NF = product(x_ND, w_DF) + jnp.concatenate(biases)[None]
        return jnp.split(y_NF.reshape(*x.shape[:-1], -1), len(names), -1)


class GRU(_Cell):
    """h ← (1 − z) n + z h, n = tanh(W x + r (U h + b)) (Cho et al. 2014, with r behind U h)."""

    @nn.nowrap
    def begin(self, h: jax.Array) -> State:
        return h

    @nn.compact
    def __call__(self, h: State, x: jax.Array) -> tuple[State, jax.Array]:
        ir, iz, in_ = self.gates(x, 'i', 'rzn', biased='rzn')
        hr, hz, hn = self.gates(h, 'h', 'rzn', biased='n')
        z = jax.nn.sigmoid(iz + hz)
        n = jnp.tanh(in_ + jax.nn.sigmoid(ir + hr) * hn)
        h = (1 - z) * n + z * h
        return h, h


class LSTM(_Cell):
    """c ← f c + i g, h ← o tanh(c) (Hochreiter and Schmidhuber 1997; Gers et al. 2000)."""

    @nn.nowrap
    def begin(self, h: jax.Array) -> State:
        return h, h

    @nn.compact
    def __call__(self, state: State, x: jax.Array) -> tuple[State, jax.Array]:
        c, h = state
        of_x = self.gates(x, 'i', 'ifgo', biased='')
        of_h = self.gates(h, 'h', 'ifgo', biased='ifgo')
        i, f, g, o = (a + b for a, b in zip(of_x, of_h, strict=True))
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (c, h), h


CELLS = {'gru': nn.jit(GRU), 'lstm': nn.jit(LSTM)}

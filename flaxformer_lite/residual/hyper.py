"""Hyper-connections (Zhu et al. 2024, "Hyper-Connections")."""

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.layer_scope import layer_index
from flaxformer_lite.ops.rms import divide_by_rms
from flaxformer_lite.residual.pre_norm import PreNorm
from flaxformer_lite.validation import Size


class HyperConnections(PreNorm):
    """A_rᵀ H + B Dropout(f(Norm(A_mᵀ H)))ᵀ, with n residual streams H of d_model each.

    All streams start as the stack's input, and the final norm reads their sum. A_m and
    B are vectors of n weights, and A_r is n × n. A row of [A_m, A_r] and an entry of B
    weight one stream h:

        row = start + a + s_α tanh(LN(h) W_α)
        entry = 1 + b + s_β tanh(LN(h) w_β)

    In layer k, `start` holds the unit vector of stream k mod n and the identity. The
    parameters a, b and W are initialized to 0, and s to 0.01, which gives the output of
    pre-norm. LN has no gain or bias. Source: equations 1 to 14.

    Use it to test more than one residual stream.

    Attributes:
      streams: n.
      dynamic: Whether weights depend on the token; otherwise s = 0.

    Examples:
      >>> import flaxformer_lite as fl
      >>> residual = fl.residual.HyperConnections(streams=2)
      >>> model = fl.Transformer(vocab_size=100, residual=residual)
    """

    streams: Size = 4
    dynamic: bool = True

    def setup(self):
        self.alpha = _Weights(1 + self.streams, self.dynamic)
        self.beta = _Weights(1, self.dynamic)

    @property
    def num_streams(self):
        return self.streams

    def initial_stream(self, x_BTD):
        return jnp.tile(x_BTD, self.streams)

    def before(self, x_BTD):
        h_BTND = self._separate(x_BTD)
        read_BT1N = self.read_weights(h_BTND)[:, :, None]
        return super().before(_matmul(read_BT1N, h_BTND)[:, :, 0])

    def after(self, x_BTD, y_BTD):
        h_BTND = self._separate(x_BTD)
        mix_BTMN = jnp.swapaxes(self.mixing_weights(h_BTND), -1, -2)
        write_BTM1 = self.write_weights(h_BTND)[..., None]
        y_BT1D = self.dropout(y_BTD)[:, :, None]
        h_BTMD = _matmul(mix_BTMN, h_BTND) + write_BTM1 * y_BT1D
        return h_BTMD.reshape(x_BTD.shape)

    def final_norm(self, x_BTD):
        return super().final_norm(self._separate(x_BTD).sum(2))

    def _separate(self, x_BTD):
        return x_BTD.reshape(*x_BTD.shape[:2], self.streams, -1)

    def read_weights(self, h_BTND: jax.Array) -> jax.Array:
        """Returns A_m of each token, BTN or with axes of length 1."""
        return self._rows(h_BTND)[..., 0]

    def mixing_weights(self, h_BTND: jax.Array) -> jax.Array:
        """Returns A_r, from stream N to stream M, BTNM or with axes of length 1."""
        return self._rows(h_BTND)[..., 1:]

    def write_weights(self, h_BTND: jax.Array) -> jax.Array:
        """Returns B of each token, BTN or with axes of length 1."""
        return 1 + self.beta(h_BTND)[..., 0]

    def _rows(self, h_BTND):
        read_N1 = stream_of_layer(self.streams)[:, None]
        start_NF = jnp.concatenate([read_N1, jnp.eye(self.streams)], 1)
        return start_NF[None, None] + self.alpha(h_BTND)


def stream_of_layer(streams: int) -> jax.Array:
    """Returns the unit vector of the stream that the running layer first reads."""
    return jax.nn.one_hot(layer_index() % streams, streams)


# Some accelerators round the operands of float32 products by default.
_matmul = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)


class _Weights(nn.Module):
    """w + s tanh(LN(h) W) of each stream h."""

    features: int
    dynamic: bool

    @nn.compact
    def __call__(self, h_BTND):
        *_, streams, d_model = h_BTND.shape
        static_NF = self.param(
            'static', nn.initializers.zeros, (streams, self.features)
        )
        if not self.dynamic:
            return static_NF[None, None]
        kernel_DF = self.param(
            'kernel', nn.initializers.zeros, (d_model, self.features)
        )
        scale = self.param('scale', nn.initializers.constant(0.01), ())
        normed_BTND = divide_by_rms(h_BTND, 1e-5, True)
        return static_NF[None, None] + scale * jnp.tanh(normed_BTND @ kernel_DF)

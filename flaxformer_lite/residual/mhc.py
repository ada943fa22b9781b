"""Manifold-constrained hyper-connections (Xie et al. 2025, "mHC")."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.ops.rms import divide_by_rms
from flaxformer_lite.residual.hyper import HyperConnections, stream_of_layer
from flaxformer_lite.validation import Size


class ManifoldHyperConnections(HyperConnections):
    """Hyper-connections whose streams are mixed by a doubly stochastic matrix.

    The sublayer reads H_pre H and updates H to H_res H + H_postᵀ f(…), with

        H_pre = σ(p), H_post = 2 σ(q), H_res = SinkhornKnopp(exp(R)).

    p, q and R are each start + b + α RMSNorm(vec(H)) φ, over all features of H. b and φ
    are initialized to 0, and α to 0.01. H_post starts at 1, and H_res near the
    identity. In layer k, H_pre starts at 0.88 for stream k mod n and 0.12 for others.
    With these starts of ours, the first output is that of pre-norm. RMSNorm has no
    gain. Source: equations 7 to 9.

    Use it if `HyperConnections` are unstable, as in deep models.

    Attributes:
      iterations: Normalizations of columns, then rows, to get H_res.

    Examples:
      >>> import flaxformer_lite as fl
      >>> residual = fl.residual.ManifoldHyperConnections()
      >>> model = fl.Transformer(vocab_size=100, residual=residual)
    """

    iterations: Size = 20

    def setup(self):
        self.pre = _Logits(self.streams, self.dynamic)
        self.post = _Logits(self.streams, self.dynamic)
        self.res = _Logits(self.streams**2, self.dynamic)

    def read_weights(self, h_BTND):
        start_N = 4 * stream_of_layer(self.streams) - 2
        return jax.nn.sigmoid(start_N[None, None] + self.pre(h_BTND))

    def write_weights(self, h_BTND):
        return 2 * jax.nn.sigmoid(self.post(h_BTND))

    def mixing_weights(self, h_BTND):
        res = self.res(h_BTND)
        res_BTMN = res.reshape(*res.shape[:2], self.streams, self.streams)
        start_MN = 4 * jnp.eye(self.streams) - 4
        mix_BTMN = sinkhorn_knopp(start_MN[None, None] + res_BTMN, self.iterations)
        return jnp.swapaxes(mix_BTMN, -1, -2)


def sinkhorn_knopp(logits: jax.Array, iterations: int) -> jax.Array:
    """Returns exp(logits) after its columns and then its rows are normalized, repeated.

    Rows of the last two axes sum to 1, and columns nearly so. It works in logarithms,
    so no entry underflows.

    Examples:
      >>> mixing = sinkhorn_knopp(jnp.log(jnp.array([[2.0, 1.0], [1.0, 2.0]])), 1)
      >>> [f'{x:.2f}' for x in mixing[0]]
      ['0.67', '0.33']
    """

    def normalize(_, logits):
        logits = jax.nn.log_softmax(logits, axis=-2)
        return jax.nn.log_softmax(logits, axis=-1)

    return jnp.exp(jax.lax.fori_loop(0, iterations, normalize, logits))


class _Logits(nn.Module):
    """b + α RMSNorm(vec(H)) φ."""

    features: int
    dynamic: bool

    @nn.compact
    def __call__(self, h_BTND):
        bias_F = self.param('bias', nn.initializers.zeros, (self.features,))
        if not self.dynamic:
            return bias_F[None, None]
        h_BTE = h_BTND.reshape(*h_BTND.shape[:2], -1)
        shape = h_BTE.shape[-1], self.features
        kernel_EF = self.param('kernel', nn.initializers.zeros, shape)
        scale = self.param('scale', nn.initializers.constant(0.01), ())
        normed_BTE = divide_by_rms(h_BTE, 1e-5, False)
        return bias_F[None, None] + scale * (normed_BTE @ kernel_EF)

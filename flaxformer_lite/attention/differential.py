"""Differential attention (Ye et al. 2024, "Differential Transformer")."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.attention.base import ScaledDotProduct
from flaxformer_lite.layer_scope import layer_index
from flaxformer_lite.ops.rms import divide_by_rms
from flaxformer_lite.validation import Positive


def initial_lambda(index: jax.Array | int) -> jax.Array:
    """Returns λ_init = 0.8 − 0.6 exp(−0.3 i) of layer i, from 0, float32.

    Examples:
      >>> [round(float(initial_lambda(i)), 3) for i in (0, 1, 11)]
      [0.2, 0.356, 0.778]
    """
    return 0.8 - 0.6 * jnp.exp(-0.3 * jnp.asarray(index, jnp.float32))


class Differential(ScaledDotProduct):
    """The difference of two softmax maps: (A₁ − λ A₂) [V₁, V₂], then a norm.

    Heads i and i + h / 2 form a pair with the maps A₁ and A₂ and the values V₁ and V₂.

    λ = exp(λ_q1 · λ_k1) − exp(λ_q2 · λ_k2) + λ_init, with vectors of d_k features that
    all pairs of a layer share. `initial_lambda` gives λ_init. The output of a pair is
    (1 − λ_init) · RMSNorm over its 2 d_v features.

    `DifferentialV2` is the authors' later version.

    Source: Ye et al. 2024, equations 1 to 3. Use it if irrelevant tokens draw
    attention, as in long texts.

    Attributes:
      lambda_rate: Learning rate of λ's vectors, relative to other parameters, for Adam
        and similar optimizers. λ is exponential in them, so a rate that suits matrices
        can be too large for λ.

    Raises:
      ValueError: The number of heads is odd.

    Examples:
      >>> import flaxformer_lite as fl
      >>> attention = fl.attention.Differential()
      >>> model = fl.Transformer(vocab_size=100, attention=attention)
    """

    per_head = True
    unsupported = ('temperature',)
    lambda_rate: Positive = 1.0

    def setup(self):
        super().setup()
        self.pair_norm = _PairNorm()

    @nn.compact
    def key_weights(self, q_BTHK, kv, **others):
        *_, num_heads, d_k = q_BTHK.shape
        if num_heads % 2:
            raise ValueError(
                f'num_heads={num_heads} must be even, because Differential attention '
                'pairs its heads. Change it, or that of the decoder or of '
                'cross-attention.'
            )
        # Adam's steps have the size of the rate, so scaled parameters move less.
        init = nn.initializers.normal(0.1 / self.lambda_rate)
        query_2K = self.lambda_rate * self.param('lambda_query', init, (2, d_k))
        key_2K = self.lambda_rate * self.param('lambda_key', init, (2, d_k))
        exp_2 = jnp.exp((query_2K * key_2K).sum(-1))
        lambda_ = exp_2[0] - exp_2[1] + initial_lambda(layer_index())

        maps_BHTS = super().key_weights(q_BTHK, kv, **others)
        first_BPTS, second_BPTS = jnp.split(maps_BHTS, 2, axis=1)
        difference_BPTS = first_BPTS - lambda_ * second_BPTS
        return jnp.concatenate([difference_BPTS, difference_BPTS], axis=1)

    def transform_heads(self, y_BTHU, x_BTD, dense):
        factor = 1 - initial_lambda(layer_index())
        return factor * self.pair_norm(y_BTHU)


class _PairNorm(nn.Module):
    @nn.compact
    def __call__(self, y_BTHU):
        batch, length, num_heads, d_v = y_BTHU.shape
        y_BT2PU = y_BTHU.reshape(batch, length, 2, num_heads // 2, d_v)
        y_BTP2U = jnp.swapaxes(y_BT2PU, 2, 3)
        y_BTPE = y_BTP2U.reshape(batch, length, num_heads // 2, 2 * d_v)
        y_BTPE = divide_by_rms(y_BTPE, 1e-5, False)
        scale_E = self.param('scale', nn.initializers.ones, (2 * d_v,))
        y_BTP2U = (y_BTPE * scale_E[None, None, None]).reshape(y_BTP2U.shape)
        return jnp.swapaxes(y_BTP2U, 2, 3).reshape(y_BTHU.shape)

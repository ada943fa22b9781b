"""The second version of differential attention (Ye et al. 2026, "Differential V2")."""

import jax
from flax import linen as nn

from flaxformer_lite.attention.base import ScaledDotProduct


class DifferentialV2(ScaledDotProduct):
    """Differences of softmax attention over the same keys: A₁ V − σ(λ) A₂ V.

    Query heads 2i and 2i + 1 give A₁ and A₂ of output head i. λ = x W has one entry per
    token and output head, where x is the input of the sublayer.

    The published form has twice the query heads of a plain model and as many key heads.
    Double `num_heads`, and keep `num_kv_heads`, `d_k` and `d_v`, so that both heads of
    a pair read the same keys and values.

    Source: Ye et al. 2026. Use it to compare with `Differential`, which has one λ per
    layer and a norm.

    Raises:
      ValueError: The number of heads is odd.

    Examples:
      >>> import flaxformer_lite as fl
      >>> attention = fl.attention.DifferentialV2()
      >>> model = fl.Transformer(vocab_size=100, attention=attention)
    """

    queries_per_head = 2

    @nn.compact
    def transform_heads(self, y_BTHU, x_BTD, dense):
        num_heads = y_BTHU.shape[2]
        if num_heads % 2:
            raise ValueError(
                f'num_heads={num_heads} must be even, because DifferentialV2 attention '
                'pairs its query heads. Change it, or that of the decoder or of '
                'cross-attention.'
            )
        features = (num_heads // 2,)
        lambda_BTH = dense.copy(
            features=features, input_axes=1, bias=False, name='lambda'
        )(x_BTD)
        first_BTHU, second_BTHU = y_BTHU[:, :, 0::2], y_BTHU[:, :, 1::2]
        return first_BTHU - jax.nn.sigmoid(lambda_BTH)[..., None] * second_BTHU

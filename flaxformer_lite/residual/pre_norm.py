"""Pre-norm: normalizes the sublayer's input, not the stream (Xiong et al. 2020)."""

from flaxformer_lite.residual.base import Residual


class PreNorm(Residual):
    """x + Dropout(f(LayerNorm(x))), with another norm after the last layer.

    Examples:
      >>> import jax.numpy as jnp
      >>> from flaxformer_lite.layers.dropout import Dropout
      >>> from flaxformer_lite.norms.identity import IdentityNorm

      >>> residual = PreNorm(norm=IdentityNorm(), dropout=Dropout(0.0))
      >>> x_BTD = jnp.ones((1, 1, 2))
      >>> residual.apply({}, x_BTD, 2 * x_BTD, method='after').tolist()
      [[[3.0, 3.0]]]
    """

    def before(self, x_BTD):
        return self.norm(x_BTD)

    def final_norm(self, x_BTD):
        return self.norm(x_BTD)

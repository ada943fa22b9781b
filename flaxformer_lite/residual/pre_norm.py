"""Pre-norm: normalizes the sublayer's input, not the stream (Xiong et al. 2020)."""

from flaxformer_lite.residual.base import Residual


class PreNorm(Residual):
    """x + Dropout(f(LayerNorm(x))), with another norm after the last layer.

    Source: Xiong et al. 2020. Use it for deep models, or to train without a warmup.

    Examples:
      >>> import flaxformer_lite as fl
      >>> residual = fl.residual.PreNorm()
      >>> model = fl.Transformer(vocab_size=100, residual=residual)
    """

    def before(self, x_BTD):
        return self.norm(x_BTD)

    def final_norm(self, x_BTD):
        return self.norm(x_BTD)

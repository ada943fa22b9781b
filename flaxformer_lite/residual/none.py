"""No residual connection, to test attention and feed-forward networks alone."""

from flaxformer_lite.residual.base import Residual


class NoResidual(Residual):
    """Dropout(f(x)).

    Use it to test what residual connections contribute.

    Examples:
      >>> import flaxformer_lite as fl
      >>> residual = fl.residual.NoResidual()
      >>> model = fl.Transformer(vocab_size=100, residual=residual)
    """

    unused_fields = ('norm',)

    def after(self, x_BTD, y_BTD):
        return self.dropout(y_BTD)

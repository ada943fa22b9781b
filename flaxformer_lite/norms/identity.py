"""No normalization."""

from flaxformer_lite.norms.base import Norm


class Identity(Norm):
    """The input x.

    Use it for a model without norms, as with `fl.residual.ReZero`.

    Examples:
      >>> import flaxformer_lite as fl
      >>> norm = fl.norms.Identity()
      >>> model = fl.Transformer(vocab_size=100, norm=norm)
    """

    def __call__(self, x_BTD):
        return x_BTD

"""No positions: permuting the tokens permutes the output."""

from flaxformer_lite.positions.base import Positions


class NoPositions(Positions):
    """Positions without effect.

    Use it for sets, or to test what positions contribute. A causal decoder can infer
    the order.

    Examples:
      >>> import flaxformer_lite as fl
      >>> positions = fl.positions.NoPositions()
      >>> model = fl.Transformer(vocab_size=100, positions=positions)
    """

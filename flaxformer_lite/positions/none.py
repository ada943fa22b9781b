"""No positions: permuting the tokens permutes the output."""

from flaxformer_lite.positions.base import Positions


class NoPositions(Positions):
    """Positions without effect."""

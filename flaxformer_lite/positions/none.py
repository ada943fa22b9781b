"""No positions: a permutation of the tokens permutes the result."""

from flaxformer_lite.positions.base import Positions


class NoPositions(Positions):
    """Positions that do nothing, wherever they could act."""

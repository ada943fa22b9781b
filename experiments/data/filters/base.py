"""What every filter of training pairs offers."""

from flaxformer_lite.ranges import Checked


class Filter(Checked):
    """Says which pairs are trained on: a dataclass, whose arguments the spec gives.

    Each pass over the pairs makes it anew, so that it may keep what it has seen.

    Raises:
      ValueError: when made, for arguments that cannot be.
    """

    def keeps(self, source: str, target: str) -> bool:
        """Whether a pair is trained on; asked in the order of the pairs, once each."""
        raise NotImplementedError

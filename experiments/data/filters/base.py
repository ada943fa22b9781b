"""Base class of filters."""

from flaxformer_lite.validation import Checked


class Filter(Checked):
    """Base class of filters: a dataclass, which may keep state.

    Each pass over the pairs gets a copy.
    """

    def keeps(self, source: str, target: str) -> bool:
        """Returns whether to keep a pair. Called once per pair, in order."""
        raise NotImplementedError

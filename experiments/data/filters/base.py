"""Base class of filters."""

from flaxformer_lite.validation import Checked


class Filter(Checked):
    """Base class of filters: a dataclass with the arguments of the spec.

    Each pass over the pairs gets a copy, so a filter may keep state.
    """

    def keeps(self, source: str, target: str) -> bool:
        """Returns whether to keep a pair; called once per pair, in order."""
        raise NotImplementedError

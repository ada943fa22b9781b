"""Pairs of which nothing is translated."""

import dataclasses

from experiments.data.filters.base import Filter


@dataclasses.dataclass(frozen=True)
class Copies(Filter):
    """Leaves out a target that is its source, but for white space.

    Such pairs teach to copy (Khayrallah and Koehn, Noise in NMT, 2018).
    """

    def keeps(self, source, target):
        return source.split() != target.split()

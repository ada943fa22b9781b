"""Filter of untranslated pairs."""

import dataclasses

from experiments.data.filters.base import Filter


@dataclasses.dataclass(frozen=True)
class Copies(Filter):
    """Removes pairs whose target equals the source, apart from white space.

    Such pairs teach copying (Khayrallah and Koehn, Noise in NMT, 2018).
    """

    def keeps(self, source, target):
        return source.split() != target.split()

"""Filters of training pairs, one per module."""

import copy
from collections.abc import Mapping

from experiments.data.digest import hex_digest, read_code
from experiments.data.filters.base import Filter
from experiments.data.sources.base import Source
from experiments.errors import UserError


def apply(source: Source, filters: Mapping[str, Filter]) -> Source:
    return Filtered(source, filters) if filters else source


class Filtered(Source):
    """A source without the training pairs that filters reject.

    `left_out` counts a pair for the first filter that rejects it.
    """

    def __init__(self, source: Source, filters: Mapping[str, Filter]):
        self._source = source
        self._filters = filters
        self.source = source.source
        self.target = source.target
        self.tags = source.tags
        self.directions = source.directions
        self.direction = source.direction
        self.documents = source.documents
        self.window = source.window

    def train(self):
        filters = copy.deepcopy(self._filters)  # a filter keeps state in a pass
        counts = dict.fromkeys(filters, 0)
        num_kept = 0
        for pair in self._source.train():
            rejecting = (x for x, filter in filters.items() if not filter.keeps(*pair))
            rejecting_filter = next(rejecting, None)
            if rejecting_filter is None:
                num_kept += 1
                yield pair
            else:
                counts[rejecting_filter] += 1
        self.left_out = counts
        if not num_kept:
            raise UserError(
                f'filters={", ".join(filters)} removed all training pairs. Loosen or '
                'remove one.'
            )

    def evaluation(self):
        return self._source.evaluation()

    def digest(self):
        parts = []
        for part in self._filters.values():
            parts += [repr(part), read_code(type(part))]
        return hex_digest(self._source.digest(), *parts)

"""Filters of training pairs, one per module, selected by spec strings.

The field `filters` is a list of specs: `[length_ratio(most=3), duplicates, copies]`.
"""

from experiments.data.digest import code_of, hex_digest
from experiments.data.filters.base import Filter
from experiments.data.sources.base import Source
from experiments.errors import UserError, user_errors
from experiments.registries import FILTERS
from flaxformer_lite.config import spec as specs
from flaxformer_lite.config.spec import Spec


def make(spec: Spec | None) -> list[Filter]:
    """Makes the filters of a list; an empty spec gives none.

    Raises:
      UserError: The text is not a list of filters.
    """
    with user_errors('filters: '):
        return [FILTERS.make(entry) for entry in specs.entries(spec)] if spec else []


class Filtered(Source):
    """A source without the training pairs that filters reject.

    Args:
      spec: The filters. A pair counts for the first filter that rejects it.

    Attributes:
      left_out: Filter → number of pairs that it rejected in the last pass.

    Raises:
      UserError: No pair is left.
    """

    def __init__(self, whole: Source, spec: Spec):
        self._whole = whole
        self._spec = spec
        self._filters = make(spec)
        self.source = whole.source
        self.target = whole.target

    def train(self):
        filters = dict(zip(specs.entries(self._spec), make(self._spec), strict=True))
        counts = {str(entry): 0 for entry in filters}
        kept = 0
        for pair in self._whole.train():
            by = (x for x, filter in filters.items() if not filter.keeps(*pair))
            refused = next(by, None)
            if refused is None:
                kept += 1
                yield pair
            else:
                counts[str(refused)] += 1
        self.left_out = counts
        if not kept:
            raise UserError(
                f'filters={self._spec} removed all training pairs. Loosen or remove '
                'one.'
            )

    def evaluation(self):
        return self._whole.evaluation()

    def digest(self):
        parts = []
        for part in self._filters:
            parts += [repr(part), code_of(type(part))]
        return hex_digest(self._whole.digest(), *parts)

"""The base class of sacreBLEU's metrics."""

import dataclasses
import functools
import itertools
from typing import Any, ClassVar

from experiments.metrics.base import Metric, count_references


@dataclasses.dataclass(frozen=True, kw_only=True)
class SacreBleu(Metric):
    """A metric as sacreBLEU computes it (Post 2018), with its signature.

    Attributes:
      unsigned: Arguments missing in sacreBLEU's signature, to append unless default.
    """

    perfect: ClassVar[float | None] = 100.0
    unsigned: ClassVar[tuple[str, ...]] = ()

    def make_scorer(self) -> Any:
        """Returns sacreBLEU's own metric. Importing one takes half a second."""
        raise NotImplementedError

    @functools.cached_property
    def _scorer(self) -> Any:
        return self.make_scorer()

    def statistics(self, outputs, references, sources):
        # sacreBLEU takes a list of all first references, then of all second ones, and
        # so on, with None for a missing reference.
        by_number = list(itertools.zip_longest(*references))
        return self._scorer._extract_corpus_statistics(outputs, by_number)

    def score_of(self, total):
        # A copy, because smoothing modifies it.
        return self._scorer._compute_score_from_stats(list(total)).score

    def signature(self, references):
        self._scorer.num_refs = count_references(references) or -1
        words = [str(self._scorer.get_signature())]
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in self.unsigned and value != field.default:
                words.append(f'{field.name}:{value}')
        return '|'.join(words)

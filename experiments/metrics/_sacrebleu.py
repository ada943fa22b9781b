"""What the metrics of sacreBLEU have in common."""

import dataclasses
import functools
import itertools
from typing import Any, ClassVar

from experiments.metrics.base import Metric, count_references


@dataclasses.dataclass(frozen=True, kw_only=True)
class SacreBleu(Metric):
    """A metric as sacreBLEU computes it (Post 2018), with its signature.

    Attributes:
      unsigned: arguments of which sacreBLEU's signature says nothing: they are added to
        it where they differ from their defaults.
    """

    unsigned: ClassVar[tuple[str, ...]] = ()

    def make_scorer(self) -> Any:
        """sacreBLEU's own metric. To import one takes half a second."""
        raise NotImplementedError

    @functools.cached_property
    def _scorer(self) -> Any:
        return self.make_scorer()

    def statistics(self, outputs, references, sources):
        # sacreBLEU has first references together, then second ones, and so on; None
        # where a sentence has no more.
        by_number = list(itertools.zip_longest(*references))
        return self._scorer._extract_corpus_statistics(outputs, by_number)

    def score_of(self, total):
        # A copy: smoothing adds to it.
        return self._scorer._compute_score_from_stats(list(total)).score

    def signature(self, references):
        self._scorer.num_refs = count_references(references) or -1
        words = [str(self._scorer.get_signature())]
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in self.unsigned and value != field.default:
                words.append(f'{field.name}:{value}')
        return '|'.join(words)

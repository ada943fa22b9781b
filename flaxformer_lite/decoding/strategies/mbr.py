"""Minimum Bayes risk decoding (Kumar and Byrne 2004; Eikema and Aziz 2020)."""

from flaxformer_lite.decoding.strategies.sample import Sample
from flaxformer_lite.ranges import Size


class Mbr(Sample):
    """Of sampled translations the one that the samples are likest.

    That with the largest mean utility, 1/S Σ u(y, y_s), where each sample y_s stands
    for a reference (Eikema and Aziz 2020, §5). Different texts are candidates, and one
    that is drawn twice counts twice as a reference.

    The utility is one of texts, and of `experiments`: `generate` has none.

    Attributes:
      temperature, top_k, top_p: as of `sample`.
      samples: S; 1 is `sample`.
      utility: u, a metric as of `evaluation.metrics`, by its scores of sentences.
    """

    samples: Size = 16
    utility: str = 'chrf'

    @property
    def utility_spec(self):
        return self.utility

    def drawn(self, n_best):
        return self.samples

"""Minimum Bayes risk decoding (Kumar and Byrne 2004; Eikema and Aziz 2020)."""

from flaxformer_lite.decoding.strategies.sample import Sampling
from flaxformer_lite.ranges import Size


class MBRDecoding(Sampling):
    """The sampled translation with the highest mean utility.

    The mean utility is 1/S Σ u(y, y_s), with each sample y_s as a reference (Eikema and
    Aziz 2020, §5). Distinct texts are candidates; a text drawn twice counts twice as a
    reference.

    The utility compares texts, so it needs `experiments`; `generate` doesn't support
    it.

    Attributes:
      temperature, top_k, top_p: as in `sample`.
      samples: S; 1 is equivalent to `sample`.
      utility: u, a metric from `evaluation.metrics`, computed per sentence.
    """

    samples: Size = 16
    utility: str = 'chrf'

    @property
    def utility_spec(self):
        return self.utility

    def drawn(self, n_best):
        return self.samples

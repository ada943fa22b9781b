"""chrF and chrF++ as sacreBLEU computes them."""

import dataclasses
from typing import Annotated, ClassVar

from experiments.metrics._sacrebleu import SacreBleu
from flaxformer_lite.validation import Range, Size


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chrf(SacreBleu):
    """(1 + β²) P R / (β² P + R), in percent, from n-grams of characters (Popović 2015).

    P and R are the means over n of precision and recall, for the best reference.

    Attributes:
      char_order: Maximum n of characters.
      word_order: Maximum n of words. 2 is chrF++ (Popović 2017).
      beta: The weight of recall relative to precision.
      eps_smoothing: True smooths as chrF++.py and NLTK, False as sacreBLEU before 2.0.
    """

    unsigned: ClassVar[tuple[str, ...]] = ('beta',)

    char_order: Size = 6
    word_order: Annotated[int, Range(at_least=0)] = 0
    beta: Size = 2
    lowercase: bool = False
    whitespace: bool = False
    eps_smoothing: bool = False

    def make_scorer(self):
        from sacrebleu.metrics.chrf import CHRF

        return CHRF(**self.arguments())

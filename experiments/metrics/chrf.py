"""chrF (Popović 2015) and chrF++ (Popović 2017), as sacreBLEU computes them."""

import dataclasses
from typing import Annotated, ClassVar

from experiments.metrics._sacrebleu import SacreBleu
from flaxformer_lite.ranges import Range, Size


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chrf(SacreBleu):
    """(1 + β²) P R / (β² P + R), in percent, of n-grams of characters.

    P and R are means over n of precision and recall, against the best reference.

    Attributes:
      char_order: the longest n.
      word_order: the longest n of words, which then count too; 2 is chrF++.
      beta: how many times as much recall counts as precision.
      lowercase: whether case does not count.
      whitespace: whether spaces are characters.
      eps_smoothing: as in chrF++.py and NLTK; else as in sacreBLEU before 2.0.
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

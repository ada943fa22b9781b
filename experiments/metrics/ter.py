"""Translation edit rate as sacreBLEU computes it."""

import dataclasses
from typing import ClassVar

from experiments.metrics._sacrebleu import SacreBleu


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ter(SacreBleu):
    """Σ edits / Σ words of the references, in percent (Snover et al. 2006).

    Edits insert, delete or replace a word, or move adjacent words. They are counted
    against the nearest reference, words as the mean over a sentence's references. A
    missing reference doesn't count, whereas sacreBLEU's command takes it for an empty
    one.

    Attributes:
      normalized: Whether to split punctuation from words, as Tercom does.
      no_punct: Whether to ignore punctuation.
      asian_support: Whether both apply to Chinese and Japanese characters too.
    """

    higher_is_better: ClassVar[bool] = False
    perfect: ClassVar[float | None] = 0.0

    normalized: bool = False
    no_punct: bool = False
    asian_support: bool = False
    case_sensitive: bool = False

    def make_scorer(self):
        from sacrebleu.metrics.ter import TER

        return TER(**self.arguments())

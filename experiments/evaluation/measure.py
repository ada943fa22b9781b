"""The score that decides between runs."""

import dataclasses
from collections.abc import Sequence

from experiments import metrics
from experiments.errors import user_errors
from experiments.metrics.base import MODEL_SCORES, score_decimals
from flaxformer_lite.config.spec import Spec
from flaxformer_lite.validation import quote

LOWER_IS_BETTER = ('loss', 'perplexity')
_PERFECT = {'loss': 0.0, 'perplexity': 0.0, 'accuracy': 1.0}


@dataclasses.dataclass(frozen=True)
class Measure:
    """A score of an evaluation set, such as `test bleu`.

    Attributes:
      score: The name of a metric, or one of `MODEL_SCORES`.
    """

    set: str
    score: str
    higher_is_better: bool = True

    @classmethod
    def parse(cls, text: str) -> 'Measure':
        """Parses `'test bleu'`. The name of a set may contain spaces."""
        name, _, score = text.rpartition(' ')
        return cls(name, score, score not in LOWER_IS_BETTER)

    def resolve(self, spec: Spec) -> 'Measure':
        """Returns the measure with the direction of its metric in `evaluation.metrics`.

        Raises:
          ValueError: The set has no name, or the config has no such score.
        """
        by_name = metrics.by_name(spec)
        known = (*by_name, *MODEL_SCORES)
        if not self.set or self.score not in known:
            raise ValueError(
                f'measure={quote(str(self))}: unknown set or score. Pass a set and one '
                f"of {', '.join(known)}, such as 'test bleu'."
            )
        if not self.is_of_translations:
            return self
        with user_errors('evaluation.metrics: '):
            metric = by_name[self.score].cls
        return dataclasses.replace(self, higher_is_better=metric.higher_is_better)

    def perfect(self, spec: Spec) -> float | None:
        """Returns the score without any error; None if it is unknown."""
        if self.is_of_translations:
            return metrics.by_name(spec)[self.score].cls.perfect
        return _PERFECT[self.score]

    def metric(self, names: Sequence[str]) -> str:
        """Returns the name of a run's metric; for a loss, the first."""
        return self.score if self.is_of_translations else names[0]

    @property
    def is_of_translations(self) -> bool:
        """True for the score of a metric."""
        return self.score not in MODEL_SCORES

    @property
    def decimals(self) -> int:
        return score_decimals(self.score)[self.score]

    @property
    def direction(self) -> str:
        return f'{"higher" if self.higher_is_better else "lower"} is better'

    def rank(self, score: float) -> float:
        return score if self.higher_is_better else -score

    def __str__(self) -> str:
        return f'{self.set} {self.score}'.lstrip()

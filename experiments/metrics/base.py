"""The base class of metrics."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

from experiments.errors import check_list
from flaxformer_lite.validation import Checked

# Scores that every model has, with the first reference and without decoding.
MODEL_SCORES = ('loss', 'perplexity', 'accuracy')
_DECIMALS = {'loss': 4, 'accuracy': 4}  # of a score as text; 2 for all others
Texts = Sequence[str]
References = Sequence[tuple[str, ...]]  # one or more for each sentence
Rows = Sequence[Sequence[float]]


def score_decimals(*scores: str) -> dict[str, int]:
    """Returns the number of decimals that each score is shown with."""
    return {name: _DECIMALS.get(name, 2) for name in scores}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metric(Checked):
    """A score of translations from additive statistics of sentences.

        score = score_of(Σᵢ statisticsᵢ)

    Sets, subsets, sentences and significance tests share statistics. A metric defines
    `statistics`, and `score_of` unless the statistics are a numerator and a
    denominator. The caller sets the attributes.

    Attributes:
      name: The metric's name in results.
      language: Code of the target language, or ''. BLEU chooses its tokenizer by it.
      perfect: The score without any error; None if unknown. A relative `margin` of a
        sweep needs it.
    """

    name: str = ''
    language: str = ''
    higher_is_better: ClassVar[bool] = True
    perfect: ClassVar[float | None] = None

    def check_installed(self) -> None:
        """Raises UserError, before compilation, if a required package is missing."""

    def statistics(
        self, outputs: Texts, references: References, sources: Texts
    ) -> Rows:
        """Returns a row of numbers for each sentence, all of the same length.

        Args:
          outputs: The translations, which may be blank.
          references: One or more for each sentence, none of them blank.
        """
        raise NotImplementedError

    def score_of(self, total: Sequence[float]) -> float:
        """Returns the score of a sum of rows, by default 100 × their ratio."""
        numerator, denominator = total
        return 100 * numerator / denominator

    def score(self, outputs: Texts, references: References, sources: Texts) -> float:
        """Returns the score of all sentences together."""
        _check_lists(outputs, references, sources)
        rows = self.statistics(outputs, references, sources)
        return self.score_of([sum(column) for column in zip(*rows, strict=True)])

    def sentence_scores(
        self, outputs: Texts, references: References, sources: Texts
    ) -> list[float]:
        _check_lists(outputs, references, sources)
        return list(map(self.score_of, self.statistics(outputs, references, sources)))

    def signature(self, references: References) -> str:
        """Returns all settings that affect scores; equal signatures are comparable."""
        words = [f'nrefs:{count_references(references) or "var"}']
        for name, value in self.arguments().items():
            if isinstance(value, bool):
                value = 'yes' if value else 'no'
            words.append(f'{name}:{value}')
        return '|'.join(words)

    def arguments(self) -> dict[str, Any]:
        """The arguments of the spec."""
        given = dataclasses.fields(Metric)
        own = dataclasses.fields(self)[len(given) :]
        return {field.name: getattr(self, field.name) for field in own}

    def rank(self, score: float) -> float:
        """Returns the score, negated if lower is better."""
        return score if self.higher_is_better else -score


def _check_lists(outputs: Texts, references: References, sources: Texts) -> None:
    check_list('outputs', outputs)
    check_list('sources', sources)
    check_list('references', references)
    for of_sentence in references:
        check_list('references of a sentence', of_sentence)


def count_references(references: References) -> int | None:
    """Returns the number of references per sentence; None if it varies."""
    numbers = set(map(len, references))
    return numbers.pop() if len(numbers) == 1 else None

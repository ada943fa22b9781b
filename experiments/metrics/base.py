"""What every metric offers."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

from experiments.errors import check_list
from flaxformer_lite.ranges import Checked

# Scores that every model has, of the first reference and without a search.
OF_MODELS = ('loss', 'perplexity', 'accuracy')
Texts = Sequence[str]
References = Sequence[tuple[str, ...]]  # of each sentence one or more
Rows = Sequence[Sequence[float]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metric(Checked):
    """A score of translations, made of numbers of each sentence that add up:

        score = score_of(Σᵢ statisticsᵢ)

    So the scores of a set, of some of its sentences, of each, and of the trials of a
    significance test are made of the same numbers, which are computed once. A metric
    has `statistics` and, unless these are a numerator and a denominator, `score_of`.
    Results show it with two decimals.

    Attributes:
      name: what results call it, as `experiments.metrics.names` says; given.
      language: the code of the target's language, '' where that is not known; given.
      higher_is_better: whether the best translations have the highest score.

    Raises:
      ValueError: when made, for arguments that cannot be.
    """

    name: str = ''
    language: str = ''
    higher_is_better: ClassVar[bool] = True

    def check_installed(self) -> None:
        """Refuses, before anything is compiled, what needs a package that is not here.

        Raises:
          UserError: names the package and what can be done.
        """

    def statistics(
        self, outputs: Texts, references: References, sources: Texts
    ) -> Rows:
        """A row of numbers for each sentence, all of the same length.

        Args:
          outputs: the translations, which may be blank.
          references: of each sentence one or more, none of which is blank.
          sources: what was translated.
        """
        raise NotImplementedError

    def score_of(self, total: Sequence[float]) -> float:
        """The score of the sum of rows; here 100 × numerator / denominator."""
        numerator, denominator = total
        return 100 * numerator / denominator

    def score(self, outputs: Texts, references: References, sources: Texts) -> float:
        """The score of all sentences together; arguments as `statistics`.

        Raises:
          UserError: one text is given for a list of them.
        """
        _check_lists(outputs, references, sources)
        rows = self.statistics(outputs, references, sources)
        return self.score_of([sum(column) for column in zip(*rows, strict=True)])

    def sentence_scores(
        self, outputs: Texts, references: References, sources: Texts
    ) -> list[float]:
        """The score of each sentence; arguments and errors as `score`."""
        _check_lists(outputs, references, sources)
        return list(map(self.score_of, self.statistics(outputs, references, sources)))

    def signature(self, references: References) -> str:
        """All by which scores differ: those of one signature can be compared."""
        words = [f'nrefs:{count_references(references) or "var"}']
        for name, value in self.arguments().items():
            if isinstance(value, bool):
                value = 'yes' if value else 'no'
            words.append(f'{name}:{value}')
        return '|'.join(words)

    def arguments(self) -> dict[str, Any]:
        """What a spec may give, as it is."""
        given = dataclasses.fields(Metric)
        own = dataclasses.fields(self)[len(given) :]
        return {field.name: getattr(self, field.name) for field in own}

    def rank(self, score: float) -> float:
        """A number that is higher for a better score."""
        return score if self.higher_is_better else -score


def _check_lists(outputs: Texts, references: References, sources: Texts) -> None:
    check_list('outputs', outputs)
    check_list('sources', sources)
    check_list('references', references)
    for of_sentence in references:
        check_list('references of a sentence', of_sentence)


def count_references(references: References) -> int | None:
    """How many references each sentence has; None where not all have as many."""
    numbers = set(map(len, references))
    return numbers.pop() if len(numbers) == 1 else None

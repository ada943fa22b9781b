"""Target words that depend on several source words."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Annotated, ClassVar

from experiments.data.sources.base import (
    GeneratedSource,
    Pair,
    distinct,
    pick,
    take_first,
)
from flaxformer_lite.validation import Range

SIZES = {'val': 200, 'test': 500}
# A word is only letters or only digits, so that it can be one piece of the tokenizer.
PLACES, LETTERS, VALUES = 'abcdefghij', 'xyz', 'klmnopqrst'
FILLERS = 'abcdefghijklmnopqrstuvwxyz'
MOST_PAIRS = 1_000_000


@dataclass(frozen=True)
class Needles(GeneratedSource):
    """Pairs whose target words each depend on `count` source words.

    With count=2, the target `35 02` needs four needles in the source, in any order and
    among fillers: `bym uh axn uc ayp bxk`. A needle has three letters: the position of
    its target word (a, b, …), x or y, and a value (k is 0, l is 1, …). The target word
    is the value of x followed by that of y, so a model must distinguish both at the
    same time. With count=1, one needle suffices.

    Attributes:
      values: Number of different needle values.
      length: Words of the target.
      fillers: Source words that are not needles.
    """

    count: Annotated[int, Range(at_least=1, at_most=3)] = 2
    values: Annotated[int, Range(at_least=2, at_most=10)] = 8
    length: Annotated[int, Range(at_least=4, at_most=10)] = 5
    fillers: Annotated[int, Range(at_least=1, at_most=100)] = 10
    seed: Annotated[int, Range(at_least=0, below=2**63)] = 0
    pairs: Annotated[int, Range(at_least=100, at_most=MOST_PAIRS)] = 10_000
    source: ClassVar[str] = 'needles'
    target: ClassVar[str] = 'digits'

    def train(self):
        skipped = sum(SIZES.values())
        return itertools.islice(self._distinct(), skipped, skipped + self.pairs)

    def evaluation(self):
        return take_first(dict.fromkeys(SIZES, self._distinct()), SIZES)

    def _distinct(self) -> Iterator[Pair]:
        rng = Random(self.seed)
        return distinct(self._draw(rng) for _ in itertools.count())

    def _draw(self, rng: Random) -> Pair:
        words = []
        target = []
        for place in PLACES[: self.length]:
            digits = ''
            for letter in LETTERS[: self.count]:
                value = pick(rng, range(self.values))
                words.append(place + letter + VALUES[value])
                digits += str(value)
            target.append(digits)
        for _ in range(self.fillers):
            words.append(f'u{pick(rng, FILLERS)}')
        return ' '.join(_shuffled(words, rng)), ' '.join(target)


def _shuffled(words: list[str], rng: Random) -> list[str]:
    rest = list(words)
    order = []
    while rest:
        place = pick(rng, range(len(rest)))
        order.append(rest.pop(place))
    return order

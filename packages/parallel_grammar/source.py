"""English-German sentences from a built-in grammar."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Annotated, ClassVar

from experiments.data.digest import hex_digest
from experiments.data.sources.base import GeneratedSource, Pair, take_first
from flaxformer_lite.validation import Range
from parallel_grammar import (
    Gold,
    Rng,
    Sentence,
    annotate,
    english,
    german,
    is_held_out,
    long_sentence,
    sentence,
)
from parallel_grammar.phenomena import PHENOMENA, phenomena_of

ParsedPair = tuple[Sentence, Pair]  # a pair with its syntax tree
SHORTEST, LONGEST = 3, 20  # words of a training sentence, in both languages
_WORDS = range(SHORTEST, LONGEST + 1)
_MORE_WORDS = range(LONGEST + 1, 2 * LONGEST + 1)
SIZES = {'val': 200, 'test': 500, 'long': 200, 'compositional': 200}


@dataclass(frozen=True)
class Grammar(GeneratedSource):
    """Distinct pairs drawn from `parallel_grammar`; no sentence repeats on either side.

    Evaluation sets: `val` and `test` are drawn like the training pairs. `long` joins
    and nests the same constructions. Each sentence of `compositional` has a word in a
    construction in which it never occurs in training (`parallel_grammar/held_out.py`).

    Attributes:
      seed: Determines the sentences, but not which combinations are held out.
      pairs: Number of training pairs. Smaller sets are prefixes of larger ones.
    """

    seed: Annotated[int, Range(at_least=0, below=2**63)] = 0
    pairs: Annotated[int, Range(at_least=100, at_most=1_000_000)] = 20_000
    source: ClassVar[str] = 'en'
    target: ClassVar[str] = 'de'

    def train(self):
        return iter(self._training)

    def evaluation(self):
        sets = {}
        for name, drawn in self._evaluation.items():
            sets[name] = [pair for _, pair in drawn]
        return sets

    def trees(self) -> dict[str, list[Sentence]]:
        sets = {}
        for name, drawn in self._evaluation.items():
            sets[name] = [tree for tree, _ in drawn]
        return sets

    def gold(self) -> dict[str, list[Gold]]:
        sets = {}
        for name, trees in self.trees().items():
            sets[name] = [annotate(tree) for tree in trees]
        return sets

    def groups(self, name):
        trees = self.trees()[name]
        found: dict[str, list[int]] = {phenomenon: [] for phenomenon in PHENOMENA}
        for i, tree in enumerate(trees):
            for phenomenon in phenomena_of(tree):
                found[phenomenon].append(i)
        return found

    def digest(self):
        files = sorted(Path(__file__).parent.glob('*.py'))
        return hex_digest(repr(self), *map(Path.read_bytes, files))

    @cached_property
    def _training(self) -> list[Pair]:
        skipped = SIZES['val'] + SIZES['test']
        drawn = islice(self._training_pairs(), skipped, skipped + self.pairs)
        return [pair for _, pair in drawn]

    def _training_pairs(self) -> Iterator[ParsedPair]:
        return self._distinct(0, sentence, _WORDS)

    @cached_property
    def _evaluation(self) -> dict[str, list[ParsedPair]]:
        ordinary = self._training_pairs()
        streams = {
            'val': ordinary,
            'test': ordinary,
            'long': self._distinct(1, long_sentence, _MORE_WORDS),
            'compositional': self._distinct(2, sentence, _WORDS, held_out=True),
        }
        return take_first(streams, SIZES)

    def _distinct(
        self,
        stream: int,
        draw: Callable[[Rng], Sentence],
        words: range,
        held_out: bool = False,
    ) -> Iterator[ParsedPair]:
        rng = Rng(3 * self.seed + stream)
        seen = set()
        while True:
            tree = draw(rng)
            if is_held_out(tree) != held_out:
                continue
            pair = english.sentence(tree), german.sentence(tree)
            fits = all(len(side.split()) in words for side in pair)
            if fits and seen.isdisjoint(pair):
                seen.update(pair)
                yield tree, pair

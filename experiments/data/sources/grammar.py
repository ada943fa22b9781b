"""English-German sentences from an embedded grammar and lexicon, fixed by a seed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Annotated, ClassVar

from experiments.data.digest import hex_digest
from experiments.data.grammar import english, german
from experiments.data.grammar.held_out import is_held_out
from experiments.data.grammar.rng import Rng
from experiments.data.grammar.sample_sentences import long_sentence, sentence
from experiments.data.grammar.syntax import Sentence
from experiments.data.sources.base import OfRule, Pair
from flaxformer_lite.ranges import Range

SHORTEST, LONGEST = 3, 20  # words of a sentence to train on, in either language
LONGER_THAN_TRAINING = range(LONGEST + 1, 2 * LONGEST + 1)
FEWEST_PAIRS, MOST_PAIRS = 100, 1_000_000
SIZES = {'val': 200, 'test': 500, 'long': 200, 'compositional': 200}


@dataclass(frozen=True)
class Grammar(OfRule):
    """Pairs drawn from the grammar of `data/grammar/`, all distinct, in both languages.

    Evaluation sets: `val` and `test` are drawn like the training pairs; `long` joins
    and nests the same constructions to sentences longer than any of these; each
    sentence of `compositional` has a word in a construction in which training never
    shows it (`grammar/held_out.py`).

    Attributes:
      seed: other seeds draw other sentences; the pairs held out of training are the
        same.
      pairs: the number of training pairs. Fewer are the first of more; the evaluation
        sets stay.

    Raises:
      ValueError: `seed` or `pairs` is out of range.
    """

    seed: Annotated[int, Range(at_least=0, below=2**63)] = 0
    pairs: Annotated[int, Range(at_least=FEWEST_PAIRS, at_most=MOST_PAIRS)] = 20_000
    source: ClassVar[str] = 'en'
    target: ClassVar[str] = 'de'

    def train(self):
        return iter(self._training)

    def evaluation(self):
        return {
            name: [pair for _, pair in drawn]
            for name, drawn in self._evaluation.items()
        }

    def trees(self) -> dict[str, list[Sentence]]:
        """What each pair of the evaluation sets was read from, by set."""
        return {
            name: [tree for tree, _ in drawn]
            for name, drawn in self._evaluation.items()
        }

    def digest(self):
        """A digest of the fields and of the code that makes the pairs."""
        files = sorted(Path(english.__file__).parent.glob('*.py'))
        return hex_digest(super().digest(), *map(Path.read_bytes, files))

    @cached_property
    def _training(self) -> list[Pair]:
        skipped = SIZES['val'] + SIZES['test']
        drawn = islice(self._ordinary(), skipped, skipped + self.pairs)
        return [pair for _, pair in drawn]

    def _ordinary(self) -> Iterator[tuple[Sentence, Pair]]:
        """First `val`, then `test`, then all that there is to train on."""
        words = range(SHORTEST, LONGEST + 1)
        return self._distinct(0, sentence, words, lambda tree: not is_held_out(tree))

    @cached_property
    def _evaluation(self) -> dict[str, list[tuple[Sentence, Pair]]]:
        ordinary = self._ordinary()
        words = range(SHORTEST, LONGEST + 1)
        streams = {
            'val': ordinary,
            'test': ordinary,
            'long': self._distinct(
                1,
                long_sentence,
                LONGER_THAN_TRAINING,
                lambda tree: not is_held_out(tree),
            ),
            'compositional': self._distinct(2, sentence, words, is_held_out),
        }
        return {
            name: list(islice(stream, SIZES[name])) for name, stream in streams.items()
        }

    def _distinct(
        self,
        stream: int,
        draw: Callable[[Rng], Sentence],
        words: range,
        accepts: Callable[[Sentence], bool],
    ) -> Iterator[tuple[Sentence, Pair]]:
        """Trees and their pairs.

        Neither side of a pair came before, and each has so many words.
        """
        rng, seen = Rng(3 * self.seed + stream), set()
        while True:
            tree = draw(rng)
            if not accepts(tree):
                continue
            pair = english.sentence(tree), german.sentence(tree)
            if seen.isdisjoint(pair) and all(
                len(side.split()) in words for side in pair
            ):
                seen.update(pair)
                yield tree, pair

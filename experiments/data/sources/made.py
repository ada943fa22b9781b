"""Synthetic tasks with sources longer than in training.

Delétang et al. (2023, "Neural Networks and the Chomsky Hierarchy"); Kazemnejad et al.
(2023, "The Impact of Positional Encoding on Length Generalization in Transformers").
"""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import filterfalse, islice
from random import Random
from typing import Annotated, ClassVar

from experiments.data.sources.base import (
    GeneratedSource,
    Pair,
    distinct,
    pick,
    take_first,
)
from flaxformer_lite.validation import Choices, Range

SIZES = {'val': 200, 'test': 500, 'longer': 500}
LETTERS = 'abcdefghijklmnopqrstuvwxyz'
DIGITS = '0123456789'
BRACKETS = {'(': ')', '[': ']'}
_SHORTEST = 4


def _copy(length: int, rng: Random) -> Pair:
    text = _drawn(LETTERS, length, rng)
    return text, text


def _reverse(length: int, rng: Random) -> Pair:
    text = _drawn(LETTERS, length, rng)
    return text, text[::-1]


def _sort(length: int, rng: Random) -> Pair:
    text = _drawn(LETTERS, length, rng)
    return text, ' '.join(sorted(text.split()))


def _addition(length: int, rng: Random) -> Pair:
    digits = length - 1
    longer = digits // 2 + pick(rng, range(digits // 2))
    one = _drawn(DIGITS, longer, rng)
    other = _drawn(DIGITS, digits - longer, rng)
    total = _number(one) + _number(other)
    return f'{one} + {other}', ' '.join(str(total))


def _number(digits: str) -> int:
    return int(digits.replace(' ', ''))


def _parity(length: int, rng: Random) -> Pair:
    text = _drawn('01', length, rng)
    return text, str(text.count('1') % 2)


def _dyck(length: int, rng: Random) -> Pair:
    word, opened = [], []
    for _ in range(length):
        # Keep one bracket open at the end, so that the target is not empty.
        if len(opened) > 1 and rng.random() < 0.5:
            word.append(opened.pop())
        else:
            bracket = pick(rng, list(BRACKETS))
            word.append(bracket)
            opened.append(BRACKETS[bracket])
    return ' '.join(word), ' '.join(reversed(opened))


_OPERATORS: dict[str, Callable[[list[int]], int]] = {
    'MAX': max,
    'MIN': min,
    'MED': lambda values: sorted(values)[(len(values) - 1) // 2],
    'SM': lambda values: sum(values) % 10,
}


def _listops(length: int, rng: Random) -> Pair:
    """Nests operations on digits (Nangia and Bowman 2018), with the lower median."""
    words, value = _expression(length, rng)
    return ' '.join(words), str(value)


def _expression(length: int, rng: Random) -> tuple[list[str], int]:
    if length < 3:
        value = pick(rng, range(10))
        return [str(value)] * length, value
    operator = pick(rng, list(_OPERATORS))
    words = [f'[{operator}']
    values = []
    rest = length - 2
    while rest:
        size = 1
        if rng.random() < 0.5:
            # A digit, or at least the three words of an operation.
            longest = min(rest, length // 2)
            size = pick(rng, [1, *range(3, longest + 1)])
        operand, value = _expression(size, rng)
        words += operand
        values.append(value)
        rest -= size
    words.append(']')
    return words, _OPERATORS[operator](values)


_TASKS: dict[str, Callable[[int, Random], Pair]] = {
    'copy': _copy,
    'reverse': _reverse,
    'sort': _sort,
    'addition': _addition,
    'parity': _parity,
    'dyck': _dyck,
    'listops': _listops,
}


@dataclass(frozen=True)
class Made(GeneratedSource):
    """Pairs of words from a synthetic task.

    | task | source | target |
    |---|---|---|
    | `copy` | `c a b` | `c a b` |
    | `reverse` | `c a b` | `b a c` |
    | `sort` | `c a b` | `a b c` |
    | `addition` | `1 2 + 9` | `2 1` |
    | `parity` | `1 0 1 1` | `1`, the count of 1 modulo 2 |
    | `dyck` | `( [ ] (` | `) )`, the closing brackets |
    | `listops` | `[MAX 2 [SM 5 6 ] ]` | `2`; SM is the sum modulo 10 |

    Source lengths, in words, are uniform. `val` and `test` have the lengths of
    training, `longer` up to twice the maximum. Their sources are never in the training
    set.

    Attributes:
      longest: Maximum words of a training source. The minimum is 4.
    """

    task: Annotated[str, Choices(*_TASKS)] = 'reverse'
    longest: Annotated[int, Range(at_least=16, at_most=1000)] = 20
    pairs: Annotated[int, Range(at_least=100, at_most=1_000_000)] = 20_000
    seed: Annotated[int, Range(at_least=0, below=2**62)] = 0
    source: ClassVar[str] = 'given'
    target: ClassVar[str] = 'wanted'

    def train(self):
        pairs = self._drawn(2 * self.seed + 1, _SHORTEST, self.longest)
        return islice(filterfalse(_is_held_out, pairs), self.pairs)

    def evaluation(self):
        pairs = self._drawn(2 * self.seed, _SHORTEST, self.longest)
        within = distinct(filter(_is_held_out, pairs))
        longer_inputs = self._drawn(2 * self.seed, self.longest + 1, 2 * self.longest)
        streams = {'val': within, 'test': within, 'longer': distinct(longer_inputs)}
        return take_first(streams, SIZES)

    def _drawn(self, seed: int, shortest: int, longest: int) -> Iterator[Pair]:
        rng = Random(seed)
        while True:
            length = shortest + pick(rng, range(longest - shortest + 1))
            yield _TASKS[self.task](length, rng)


def _drawn(symbols: str, length: int, rng: Random) -> str:
    return ' '.join(pick(rng, symbols) for _ in range(length))


def _is_held_out(pair: Pair) -> bool:
    return zlib.crc32(pair[0].encode()) % 20 == 0

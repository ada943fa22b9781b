"""SCAN, commands and their actions.

Lake and Baroni (2018, "Generalization without Systematicity"): the grammar of their
figure 6, the meanings of figure 7, and the splits of their experiments 1 to 3.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from experiments.data.digest import hex_digest
from experiments.data.sources.base import OfRule, Pair
from flaxformer_lite.validation import Choices, Range

ACTIONS = ('walk', 'look', 'run', 'jump')
_VAL = 500  # pairs of the test set for the dev set


@dataclass(frozen=True)
class Scan(OfRule):
    """`jump around left twice` → `I_TURN_LEFT I_JUMP …`: all 20,910 commands, split.

    `simple` is a random split, four to one. `length` trains on up to `cutoff` actions.
    `addprim_jump` trains on commands without `jump`, and on `jump` alone, repeated
    until it is a tenth of the training set. It tests on all others. `addprim_turn_left`
    does so with `turn left`. All but `simple` equal the official files.

    `val` is 500 commands of `test`, selected by a hash. SCAN has no third set, so
    selecting by `val` means selecting by test data.

    Attributes:
      cutoff: Newman et al. (2020, "The EOS Decision and Length Extrapolation") also use
        24, 25, 26, 27, 28, 30, 32, 33, 36 and 40.
    """

    split: Annotated[
        str, Choices('simple', 'length', 'addprim_jump', 'addprim_turn_left')
    ] = 'length'
    cutoff: Annotated[int, Range(at_least=1, at_most=47)] = 22
    source: ClassVar[str] = 'command'
    target: ClassVar[str] = 'actions'

    def __post_init__(self):
        super().__post_init__()
        if self.split != 'length' and self.cutoff != Scan.cutoff:
            raise ValueError(
                f"cutoff={self.cutoff} applies only to split='length', not to "
                f'{self.split!r}. Leave it out.'
            )

    def train(self):
        pairs = dict(itertools.filterfalse(self._is_tested, commands()))
        yield from pairs.items()
        if self.split.startswith('addprim'):
            alone = (self._primitive, pairs[self._primitive])
            # The total is a ninth of the other pairs, including the first occurrence.
            wanted = (len(pairs) - 1) // 9
            yield from itertools.repeat(alone, wanted - 1)

    def evaluation(self):
        test = list(filter(self._is_tested, commands()))
        by_hash = sorted(test, key=_hash)
        return {'val': by_hash[:_VAL], 'test': test}

    @property
    def _primitive(self) -> str:
        return self.split.removeprefix('addprim_').replace('_', ' ')

    def _is_tested(self, pair: Pair) -> bool:
        command, actions = pair
        if self.split == 'simple':
            return int(_hash(pair), 16) % 5 == 0
        if self.split == 'length':
            return len(actions.split()) > self.cutoff
        return command != self._primitive and self._primitive in command


def commands() -> Iterator[Pair]:
    simple = list(_repeated(_verbs()))
    yield from simple
    for (first, one), (second, other) in itertools.product(simple, repeat=2):
        yield f'{first} and {second}', f'{one} {other}'
        yield f'{first} after {second}', f'{other} {one}'


def _verbs() -> Iterator[Pair]:
    """Yields V of the grammar: an action, also to a side, opposite, or around."""
    for verb in (*ACTIONS, 'turn'):
        action = '' if verb == 'turn' else f' I_{verb.upper()}'
        if action:
            yield verb, action.strip()
        for side in ('left', 'right'):
            turn = f'I_TURN_{side.upper()}'
            once = turn + action
            opposite = f'{turn} {once}'
            around = f'{once} {once} {once} {once}'
            yield f'{verb} {side}', once
            yield f'{verb} opposite {side}', opposite
            yield f'{verb} around {side}', around


def _repeated(verbs: Iterator[Pair]) -> Iterator[Pair]:
    """Yields S of the grammar: once, twice or thrice."""
    for verb, actions in verbs:
        yield verb, actions
        twice = f'{actions} {actions}'
        yield f'{verb} twice', twice
        yield f'{verb} thrice', f'{twice} {actions}'


def _hash(pair: Pair) -> str:
    return hex_digest(pair[0])

"""SCAN (Lake and Baroni 2018, "Generalization without Systematicity").

The grammar of figure 6, the meanings of figure 7, and the splits of experiments 1 to 3.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from experiments.data.digest import hex_digest
from experiments.data.sources.base import GeneratedSource, Pair
from flaxformer_lite.validation import Choices, Range

ACTIONS = ('walk', 'look', 'run', 'jump')
_VAL = 500  # pairs of the test set for the dev set


@dataclass(frozen=True)
class Scan(GeneratedSource):
    """`jump around left twice` → `I_TURN_LEFT I_JUMP …`: all 20,910 commands, split.

    | split | training set |
    |---|---|
    | `simple` | four fifths at random |
    | `length` | up to `cutoff` actions |
    | `addprim_jump` | `jump` only alone, repeated to a tenth of the set |
    | `addprim_turn_left` | the same with `turn left` |

    `test` is the rest. All splits but `simple` equal the official files. SCAN has no
    third set: `val` is 500 commands of `test`, so selecting by `val` means selecting by
    test data.

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
            primitive_pair = (self._primitive, pairs[self._primitive])
            # The total is a ninth of the other pairs, including the first occurrence.
            required = (len(pairs) - 1) // 9
            yield from itertools.repeat(primitive_pair, required - 1)

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
    """Yields each command of the grammar with its actions."""
    simple = list(_repeated(_verbs()))
    yield from simple
    for (first, one), (second, other) in itertools.product(simple, repeat=2):
        yield f'{first} and {second}', f'{one} {other}'
        yield f'{first} after {second}', f'{other} {one}'


def _verbs() -> Iterator[Pair]:
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
    for verb, actions in verbs:
        yield verb, actions
        twice = f'{actions} {actions}'
        yield f'{verb} twice', twice
        yield f'{verb} thrice', f'{twice} {actions}'


def _hash(pair: Pair) -> str:
    return hex_digest(pair[0])

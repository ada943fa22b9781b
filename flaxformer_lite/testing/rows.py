"""Test rows in two batches that cover most contracts of a model at once.

Both batches contain `PAIRS`, one pair per row. The first batch also has the pairs
packed in one row, an empty row, and a target with and without a source. Further rows
differ in padding or one token. The second batch has the prefixes of a search's
hypotheses.
"""

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flaxformer_lite.kv_cache import BeamState

# Source and labels. 0 is padding, 1 the end token, 2 the start token.
Pair = tuple[Sequence[int], Sequence[int]]
VOCAB_SIZE = 13
PAIRS: list[Pair] = [
    ([4, 5, 6, 7, 1], [8, 9, 3, 1]),
    ([10, 4, 1], [11, 5, 12, 6, 7, 1]),
    ([9, 1], [4, 1]),
]
# Rows of the first batch after PAIRS; CHANGED has one row per token.
PACKED, NOTHING = 3, 4
BLIND, BLIND_NOISY, PLAIN, NOISY, CHANGED = 5, 6, 7, 8, 9
PAIR: Pair = ([4, 5, 1], [4, 5, 6, 7, 8, 1])
LENGTH = len(PAIR[1])
OTHER_TOKEN = 9
# T steps of N hypotheses for each of B sentences, which fork and die as in a beam.
SOURCES = [[4, 5, 6, 1, 0], [7, 1, 0, 0, 0]]
PARENTS = [[[0, 0], [0, 0]], [[0, 1], [0, 1]], [[1, 1], [0, 1]], [[0, 1], [1, 0]]]
T, B, N = 4, 2, 2
HYPOTHESES = list(itertools.product(range(T), range(B), range(N)))


class Steps(NamedTuple):
    """Inputs of cached decoding.

    Attributes:
      source_BS: int32, two sentences.
    """

    source_BS: jax.Array
    tokens_TBN: jax.Array
    beams: BeamState


class _Past(NamedTuple):
    tokens: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()


def batch_of(rows: Sequence[Sequence[Pair]]) -> dict[str, jax.Array]:
    return _as_int32(_columns(rows))


def both_batches() -> dict[str, jax.Array]:
    """Returns both batches: int32 arrays (2, rows, length)."""
    alone = [[pair] for pair in PAIRS]
    without_source = [([], PAIR[1])]
    blind = [without_source] * 2
    seeing = [[PAIR]] * (2 + LENGTH)
    first = [*alone, PAIRS, [], *blind, *seeing]
    second = [*alone]
    for (_, sentence, _), past in _pasts().items():
        source = [token for token in SOURCES[sentence] if token]
        second.append([(source, [*past.tokens[1:], 1])])
    first += [[]] * (len(second) - len(first))

    columns = _columns([*first, *second])
    for name in ('source', 'inputs'):
        lists = columns[name]
        for row in (NOISY, BLIND_NOISY):
            lists[row] = [x or OTHER_TOKEN for x in lists[row]]
    for i in range(LENGTH):
        columns['inputs'][CHANGED + i][i] = OTHER_TOKEN
    half = len(first)
    return _as_int32({name: [x[:half], x[half:]] for name, x in columns.items()})


def steps() -> Steps:
    pasts = _pasts()
    tokens = [pasts[i].tokens[-1] for i in HYPOTHESES]
    visible = [[slot in pasts[i].slots for slot in range(T * N)] for i in HYPOTHESES]
    beams = BeamState(
        step=jnp.asarray(range(T), jnp.int32),
        parent_BN=jnp.asarray(PARENTS, jnp.int32),
        visible_BNS=jnp.asarray(visible).reshape(T, B, N, T * N),
    )
    tokens_TBN = jnp.asarray(tokens, jnp.int32).reshape(T, B, N)
    return Steps(jnp.asarray(SOURCES, jnp.int32), tokens_TBN, beams)


def random_array(rng: random.Random, shape: Sequence[int]) -> jax.Array:
    """Returns float32 normal numbers with standard deviation 0.4."""
    return jnp.asarray(_random_lists(rng, shape), jnp.float32)


def _random_lists(rng: random.Random, shape: Sequence[int]) -> Any:
    if not shape:
        return rng.gauss(0, 0.4)
    return [_random_lists(rng, shape[1:]) for _ in range(shape[0])]


def _pasts() -> dict[tuple[int, int, int], _Past]:
    rng = random.Random(0)
    pasts = {}
    for i, j, k in HYPOTHESES:
        past = _Past()
        token = 2
        if i:
            past = pasts[i - 1, j, PARENTS[i][j][k]]
            token = rng.randrange(3, VOCAB_SIZE)
        pasts[i, j, k] = _Past((*past.tokens, token), (*past.slots, i * N + k))
    return pasts


def _columns(rows: Sequence[Sequence[Pair]]) -> dict[str, list[list[int]]]:
    columns: dict[str, list[list[int]]] = {}

    def add(name, values):
        numbers = [int(v) for pair in values for v in pair]
        columns.setdefault(name, []).append(numbers)

    for row in rows:
        sources = [source for source, _ in row]
        targets = [target for _, target in row]
        add('source', sources)
        add('inputs', [[2, *t[:-1]] for t in targets])
        add('labels', targets)
        for name, side in (('source', sources), ('target', targets)):
            segments = [[i] * len(x) for i, x in enumerate(side, 1)]
            add(f'{name}_segments', segments)
            add(f'{name}_positions', [range(len(x)) for x in side])
    for lists in columns.values():
        length = max(map(len, lists))
        lists[:] = [x + [0] * (length - len(x)) for x in lists]
    return columns


def _as_int32(lists: Mapping[str, Any]) -> dict[str, jax.Array]:
    return {name: jnp.asarray(x, jnp.int32) for name, x in lists.items()}

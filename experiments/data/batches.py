"""Batches of a few static shapes under a budget of tokens, planned from (seed, epoch, window)."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import numpy as np

from experiments.command_line.errors import UserError
from experiments.data import packing
from experiments.data.collate import Batch, pairs_batch, source_batch
from experiments.data.corpus import Corpus, Ragged, chunks

T = TypeVar('T')


class Position(NamedTuple):
    """Where in the training data the next batch is: three integers, for a checkpoint to hold."""

    epoch: int = 0
    window: int = 0
    index: int = 0


class _Plan(NamedTuple):
    """What a batch will hold: pairs of the corpus and the row of each, ascending."""

    shape: tuple[int, int]
    pairs: np.ndarray
    rows: np.ndarray


class Batches:
    """The training batches: each pair within the length limit exactly once an epoch.

    Each epoch shuffles the whole corpus anew and goes through it in windows, planned one at a time,
    so memory does not grow with the corpus. Within a window, either pairs of like length share a
    batch, one a row, padded to one of a few lengths; or rows of one length are packed with several
    pairs each. What is left over at a window's end makes a batch with empty rows.

    Args:
      corpus: the pairs.
      tokens: positions of a batch on either side, padding included, at most.
      max_length: tokens of a side, EOS included, above which a pair is left out.
      packed: several pairs a row instead of buckets.
      seed: of the order; not negative.
      rows_multiple: the number of devices, among which the rows of a batch are divided.
      accumulate: the parts that each of them takes its rows in.
      window: pairs planned at once, at most.

    Attributes:
      dropped: pairs that are longer than `max_length`.
      longest: tokens of the longest side of the others.
      shapes: the (rows, length) of the batches; a program is compiled for each.
      padding_share: padding as a share of all positions of both sides, in the first window.
      target_tokens_per_batch: mean number of target tokens without padding, in the first window.
      batches_per_epoch: exact for the first epoch of a single window, else from the first window.

    Raises:
      UserError: every pair is longer than `max_length`, or a row takes more than `tokens`.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        tokens: int,
        max_length: int,
        packed: bool = False,
        seed: int = 0,
        rows_multiple: int = 1,
        accumulate: int = 1,
        window: int = 1 << 17,
    ):
        self._corpus, self._seed, self._max_length, self._packed = (
            corpus,
            seed,
            max_length,
            packed,
        )
        self._windows = -(-len(corpus) // window)
        counts = _count_lengths(corpus, max_length)
        self.dropped = len(corpus) - int(counts.sum())
        self.longest = int(np.flatnonzero(counts).max(initial=0))
        if self.dropped == len(corpus):
            raise UserError(
                f'batch.max_length={max_length} is less than each of the {len(corpus):,} training '
                'pairs has tokens, EOS included; raise it'
            )
        if packed:
            lengths = [packing.packed_length(counts, max_length)]
        else:
            lengths = packing.bucket_lengths(counts, tokens, self._windows, max_length)
        multiple = rows_multiple * accumulate
        if tokens < lengths[-1] * multiple:
            raise UserError(
                _too_few(tokens, lengths[-1], rows_multiple, accumulate, max_length)
            )
        self.shapes = [(tokens // n // multiple * multiple, n) for n in lengths]
        self._first = self._plan(0, 0)
        self._measure()

    def iterate(self, position: Position) -> Iterator[tuple[Batch, Position]]:
        """The batches from a position on, for ever, each with the position of the one after it."""
        epoch, window, index = position
        while True:
            at_start = (epoch, window) == (0, 0)
            plans = self._first if at_start else self._plan(epoch, window)
            following = (
                (epoch, window + 1) if window + 1 < self._windows else (epoch + 1, 0)
            )
            for i in range(index, len(plans)):
                last = i + 1 == len(plans)
                after = Position(*following) if last else Position(epoch, window, i + 1)
                yield pairs_batch(self._corpus, *plans[i]), after
            (epoch, window), index = following, 0

    def _measure(self) -> None:
        positions = sum(rows * length for (rows, length), _, _ in self._first)
        pairs = np.concatenate(
            [np.empty(0, np.int64), *(plan.pairs for plan in self._first)]
        )
        source, target = _lengths(self._corpus, pairs).sum(axis=0).tolist()
        self.padding_share = 1 - (source + target) / max(1, 2 * positions)
        self.target_tokens_per_batch = target / max(1, len(self._first))
        self.batches_per_epoch = len(self._first) * self._windows

    def _plan(self, epoch: int, window: int) -> list[_Plan]:
        size = len(self._corpus)
        index = np.arange(
            size * window // self._windows, size * (window + 1) // self._windows
        )
        pairs = packing.permute(index, size, (self._seed, epoch))
        lengths = _lengths(self._corpus, pairs)
        fits = lengths.max(axis=1) <= self._max_length
        arrange = self._pack if self._packed else self._bucket
        plans = arrange(pairs[fits], lengths[fits])
        # Else lengths would come in order, and a window would end with its emptiest batch.
        order = np.random.default_rng((self._seed, epoch, window)).permutation(
            len(plans)
        )
        return [plans[i] for i in order]

    def _bucket(self, pairs: np.ndarray, lengths: np.ndarray) -> list[_Plan]:
        buckets = np.searchsorted(
            [length for _, length in self.shapes], lengths.max(axis=1)
        )
        plans = []
        for bucket, shape in enumerate(self.shapes):
            inside = pairs[buckets == bucket]
            for start in range(0, len(inside), shape[0]):
                part = inside[start : start + shape[0]]
                plans.append(_Plan(shape, part, np.arange(len(part))))
        return plans

    def _pack(self, pairs: np.ndarray, lengths: np.ndarray) -> list[_Plan]:
        (shape,) = self.shapes
        rows = packing.first_fit(lengths, shape[1])
        order = np.argsort(rows, kind='stable')
        pairs, rows = pairs[order], rows[order]
        cuts = np.searchsorted(rows, np.arange(0, rows.max(initial=-1) + 1, shape[0]))
        parts = zip(np.split(pairs, cuts)[1:], np.split(rows, cuts)[1:], strict=True)
        return [_Plan(shape, part, row % shape[0]) for part, row in parts]


def _too_few(
    tokens: int, length: int, devices: int, accumulate: int, max_length: int
) -> str:
    each = '1 device' if devices == 1 else f'{devices} devices'
    lower = f'batch.max_length={max_length}'
    if accumulate > 1:
        each += f' in each of train.accumulate={accumulate} parts'
        lower = f'train.accumulate or {lower}'
    least = length * devices * accumulate
    return (
        f'batch.tokens={tokens} is less than a row of {length} tokens for each of '
        f'{each}; give at least {least} or lower {lower}'
    )


def evaluation_batches(
    corpus: Corpus, tokens: int, rows_multiple: int = 1
) -> Iterator[tuple[Batch, np.ndarray]]:
    """Every pair of a set once, however long it is.

    Yields:
      A batch, and the indices of the pairs that its first rows hold; rows after those are empty.
    """
    lengths = _lengths(corpus, np.arange(len(corpus))).max(axis=1)
    for shape, pairs in packing.by_length(lengths, tokens, rows_multiple):
        yield pairs_batch(corpus, shape, pairs, np.arange(len(pairs))), pairs


def source_batches(
    sentences: Iterable[list[int]],
    tokens: int,
    rows_multiple: int = 1,
    window: int = 4096,
) -> Iterator[tuple[Batch, np.ndarray]]:
    """The source side of sentences to translate, each of them once, however long it is.

    Only `window` sentences are read ahead and put in order of length; all batches of a window come
    before those of the next.

    Yields:
      The source side of a batch, and the indices of the sentences that its first rows hold; rows
      after those are empty.
    """
    first = 0
    for chunk in chunks(sentences, window):
        ragged = Ragged.of(chunk)
        for shape, rows in packing.by_length(
            ragged.lengths() + 1, tokens, rows_multiple
        ):
            yield source_batch(ragged, shape, rows, np.arange(len(rows))), first + rows
        first += len(chunk)


def prefetch(items: Iterable[T], ahead: int = 2) -> Iterator[T]:
    """The same items, made by a thread while the ones before them are in use.

    What `items` raises is raised here in its turn. Not Grain's thread: that wants a data set of its
    own kind with a state, and the position of the next batch is all the state there is.
    """
    items, end = iter(items), object()
    with ThreadPoolExecutor(1, thread_name_prefix='prefetch') as thread:
        waiting = deque(thread.submit(next, items, end) for _ in range(ahead))
        while (item := waiting.popleft().result()) is not end:
            waiting.append(thread.submit(next, items, end))
            yield item


def _count_lengths(corpus: Corpus, most: int) -> np.ndarray:
    """[most + 1]: how many pairs have each length up to `most`; a chunk at a time, for memory."""
    counts = np.zeros(most + 1, np.int64)
    for start in range(0, len(corpus), 1 << 18):
        lengths = _lengths(corpus, slice(start, start + (1 << 18))).max(axis=1)
        counts += np.bincount(lengths[lengths <= most], minlength=most + 1)
    return counts


def _lengths(corpus: Corpus, pairs: np.ndarray | slice) -> np.ndarray:
    """[pairs, 2]: the lengths of both sides, EOS included."""
    return (
        np.stack([corpus.source.lengths(pairs), corpus.target.lengths(pairs)], axis=1)
        + 1
    )

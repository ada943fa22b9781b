"""Batches of a few static shapes, each with at most so many tokens.

What a batch holds follows from (seed, epoch, window) alone.
"""

import dataclasses
import math
from collections.abc import Callable, Generator
from typing import NamedTuple

import numpy as np

from experiments.data import packing
from experiments.data.collate import Batch, pairs_batch
from experiments.data.corpus import Corpus, examples, resample
from experiments.data.objectives.base import Objective
from experiments.data.packing import Shape
from experiments.data.tokenizers.base import Tokenizer
from experiments.errors import UserError

_CHUNK = 1 << 18  # pairs whose lengths are counted at once


class Position(NamedTuple):
    """Where in the training data the next batch is; every checkpoint holds it."""

    epoch: int = 0
    window: int = 0
    index: int = 0


class _Plan(NamedTuple):
    """What a batch will hold: pairs of a corpus, and the row of each, ascending."""

    shape: Shape
    pairs: np.ndarray
    rows: np.ndarray


class Batches:
    """The training batches: each pair within the length limit exactly once an epoch.

    Each epoch shuffles the whole corpus anew, and splits it into windows that are
    planned one at a time, so memory does not grow with the corpus. Within a window
    there are two ways to share batches. With buckets, pairs of similar length share a
    batch: one pair a row, padded to one of a few lengths. With packing, all rows have
    one length and hold several pairs each. The last batch of a shape in a window may
    have empty rows.

    Args:
      corpus: the pairs.
      tokens: positions of a batch on either side, padding included, at most.
      max_length: tokens of a side, EOS included; longer pairs are left out.
      packed: packing instead of buckets.
      seed: of the order; not negative.
      rows_multiple: the rows of a batch are a multiple of it.
      accumulate: into how many parts the rows are divided, too.
      devices: among which the rows are divided; where they cannot be, empty rows fill
        them up. Nothing else depends on it, so that a run can go on with others.
      window: pairs planned at once, at most.
      tokenizer: of the corpus, which draws ids anew in each epoch where it `samples`;
        what it draws for a pair follows from seed, epoch and pair.
      objective: what makes examples of one side of the pairs, by the same; None: the
        pairs themselves.

    Attributes:
      dropped: pairs that are longer than `max_length`.
      longest: tokens of the longest side of the others.
      planned_shapes: the (rows, length) of the batches.
      shapes: the same with the rows that fill them up; a program is compiled for each.
      padding_share: padding as a share of all positions of both sides, in the first
        window.
      target_tokens_per_batch: mean number of target tokens without padding, in the
        first window.
      batches_per_epoch: exact for the first epoch of a single window, else extrapolated
        from the first window.

    Raises:
      UserError: every pair is longer than `max_length`, or one row takes more than
        `tokens`.
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
        devices: int = 1,
        window: int = 1 << 17,
        tokenizer: Tokenizer | None = None,
        objective: Objective | None = None,
    ):
        if objective:
            side = getattr(corpus, objective.side)  # no example is longer than its row
            corpus = dataclasses.replace(corpus, source=side, target=side)
        self._corpus = corpus
        self._objective = objective
        self._sampler = tokenizer if tokenizer and tokenizer.samples else None
        self._seed = seed
        self._max_length = max_length
        self._packed = packed
        self._windows = math.ceil(len(corpus) / window)
        counts = _count_lengths(corpus, max_length)
        self.dropped = len(corpus) - int(counts.sum())
        self.longest = int(np.flatnonzero(counts).max(initial=0))
        if self.dropped == len(corpus):
            raise UserError(
                f'batch.max_length={max_length} is less than each of the '
                f'{len(corpus):,} training pairs has tokens, EOS included; raise it'
            )
        if packed:
            lengths = [packing.packed_length(self.longest, max_length)]
        else:
            lengths = packing.bucket_lengths(counts, tokens, self._windows, max_length)
        multiple = rows_multiple * accumulate
        if tokens < lengths[-1] * multiple:
            least = lengths[-1] * multiple
            raise UserError(
                f'batch.tokens={tokens} is less than batch.rows_multiple='
                f'{rows_multiple} rows of {lengths[-1]} tokens in each of '
                f'train.accumulate={accumulate} parts; give at least {least} or lower '
                f'one of these or batch.max_length={max_length}'
            )
        self.planned_shapes = [
            (tokens // length // multiple * multiple, length) for length in lengths
        ]
        self._rows_multiple = accumulate * devices
        self.shapes = [self._filled(shape) for shape in self.planned_shapes]
        if self._sampler:
            self.longest = lengths[-1]
        self._first = self._plan(0, 0)
        first, plans = self._first
        positions = sum(math.prod(plan.shape) for plan in plans)
        pairs = np.concatenate([plan.pairs for plan in plans] or [[]]).astype(int)
        sources, targets = first.lengths(pairs).sum(axis=0).tolist()
        self.padding_share = 1 - (sources + targets) / max(1, 2 * positions)
        self.target_tokens_per_batch = targets / max(1, len(plans))
        self.batches_per_epoch = len(plans) * self._windows

    def iterate(
        self, position: Position, own_rows: Callable[[int], np.ndarray] = np.arange
    ) -> Generator[tuple[Batch, Position], None, None]:
        """The batches from a position on, endlessly, with the next one's position.

        Each has the rows alone that `own_rows` chooses, of so many.
        """
        while True:
            epoch, window, index = position
            is_first = epoch == window == 0
            corpus, plans = self._first if is_first else self._plan(epoch, window)
            position = Position(epoch + 1)
            if window + 1 < self._windows:
                position = Position(epoch, window + 1)
            for i in range(index, len(plans)):
                after = Position(epoch, window, i + 1)
                if i + 1 == len(plans):
                    after = position
                shape, pairs, rows = plans[i]
                shape = self._filled(shape)
                own = own_rows(shape[0])
                batch = pairs_batch(corpus, shape, pairs, rows)
                yield {name: x[own] for name, x in batch.items()}, after

    def _filled(self, shape: Shape) -> Shape:
        """With as many rows more as devices and parts need to divide them evenly."""
        rows, length = shape
        return rows + -rows % self._rows_multiple, length

    def _plan(self, epoch: int, window: int) -> tuple[Corpus, list[_Plan]]:
        """The batches of a window, and the corpus of which they hold pairs."""
        size = len(self._corpus)
        start = size * window // self._windows
        end = size * (window + 1) // self._windows
        seed = (self._seed, epoch)
        pairs = packing.permute(np.arange(start, end), size, seed)
        seeds = packing.pair_seeds(pairs, seed)
        corpus = self._corpus
        in_memory = np.arange(len(pairs))
        if self._sampler:
            _, most = self.planned_shapes[-1]
            corpus = resample(corpus, pairs, self._sampler, seeds, most)
            pairs = in_memory
        if self._objective:
            corpus = examples(corpus, pairs, self._objective, seeds[:, 0])
            pairs = in_memory
        lengths = corpus.lengths(pairs)
        fits = lengths.max(axis=1) <= self._max_length
        plan = self._pack if self._packed else self._bucket
        plans = plan(pairs[fits], lengths[fits])
        # In a random order: else batches would come by length, and the emptiest last.
        rng = np.random.default_rng((*seed, window))
        order = rng.permutation(len(plans))
        return corpus, [plans[i] for i in order]

    def _bucket(self, pairs: np.ndarray, lengths: np.ndarray) -> list[_Plan]:
        """One pair a row, padded to the smallest length of `shapes` that it fits."""
        limits = [length for _, length in self.planned_shapes]
        buckets = np.searchsorted(limits, lengths.max(axis=1))
        plans = []
        for bucket, shape in enumerate(self.planned_shapes):
            rows, _ = shape
            inside = pairs[buckets == bucket]
            for start in range(0, len(inside), rows):
                part = inside[start : start + rows]
                plans.append(_Plan(shape, part, np.arange(len(part))))
        return plans

    def _pack(self, pairs: np.ndarray, lengths: np.ndarray) -> list[_Plan]:
        """Several pairs a row, by first fit."""
        (shape,) = self.planned_shapes
        packed = packing.pack(lengths, shape)
        return [_Plan(shape, pairs[index], rows) for index, rows in packed]


def _count_lengths(corpus: Corpus, most: int) -> np.ndarray:
    """[most + 1]: how many pairs have each length up to `most`.

    It counts one chunk at a time, to save memory.
    """
    counts = np.zeros(most + 1, np.int64)
    for start in range(0, len(corpus), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        lengths = corpus.lengths(chunk).max(axis=1)
        fitting = lengths[lengths <= most]
        counts += np.bincount(fitting, minlength=most + 1)
    return counts

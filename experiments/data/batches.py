"""Training batches of a few static shapes."""

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

_CHUNK = 1 << 18  # number of pairs to count at once


class Position(NamedTuple):
    epoch: int = 0
    window: int = 0
    index: int = 0


class _Plan(NamedTuple):
    shape: Shape
    pairs: np.ndarray
    rows: np.ndarray


class Batches:
    """Training batches; each epoch has each pair within the length limit once.

    The batches depend only on the seed, so a run can resume on another number of
    `devices`. Each epoch is shuffled, and planned in windows to save memory. With
    buckets, each row has one pair, padded to one of a few lengths. With packing, rows
    of one length hold several pairs.

    Args:
      seed: Non-negative seed of the order.
      accumulate: Number of microbatches, which must have equally many rows.
      window: Maximum number of pairs planned at once.
      tokenizer: If it `samples`, each epoch gets new ids.
      objective: Makes examples from one side. Defaults to the pairs.

    Attributes:
      dropped: Number of pairs longer than `max_length`.
      longest: Tokens of the longest remaining side.
      planned_shapes, shapes: (rows, length) of the batches. `shapes` includes empty
        rows, which make the number of rows a multiple of the number of devices.
      padding_share, target_tokens_per_batch: Means over the first window, because the
        later ones aren't planned yet.
      batches_per_epoch: Number of batches, extrapolated from the first window.
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
            side = getattr(corpus, objective.side)  # at least as long as its examples
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
                f'batch.max_length={max_length} excludes all {len(corpus):,} training '
                'pairs (lengths include EOS). Raise it.'
            )
        if packed:
            lengths = [packing.packed_length(self.longest, max_length)]
        else:
            lengths = packing.bucket_lengths(counts, tokens, self._windows, max_length)
        multiple = rows_multiple * accumulate
        if tokens < lengths[-1] * multiple:
            least = lengths[-1] * multiple
            raise UserError(
                f'batch.tokens={tokens} is less than one batch: '
                f'batch.rows_multiple={rows_multiple} × {lengths[-1]} tokens × '
                f'train.accumulate={accumulate}. Set it to at least {least}, or lower '
                'batch.rows_multiple, train.accumulate or '
                f'batch.max_length={max_length}.'
            )
        self.planned_shapes = [
            (tokens // length // multiple * multiple, length) for length in lengths
        ]
        self._rows_multiple = accumulate * devices
        self.shapes = [self._round_up_rows(shape) for shape in self.planned_shapes]
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
        """Yields batches endlessly, each with the position of the next.

        `own_rows` maps the number of rows to the row indices to return.
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
                shape = self._round_up_rows(shape)
                own = own_rows(shape[0])
                batch = pairs_batch(corpus, shape, pairs, rows)
                yield {name: x[own] for name, x in batch.items()}, after

    def _round_up_rows(self, shape: Shape) -> Shape:
        rows, length = shape
        return rows + -rows % self._rows_multiple, length

    def _plan(self, epoch: int, window: int) -> tuple[Corpus, list[_Plan]]:
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
        # Shuffle: otherwise batches would be sorted by length, with the emptiest last.
        rng = np.random.default_rng((*seed, window))
        order = rng.permutation(len(plans))
        return corpus, [plans[i] for i in order]

    def _bucket(self, pairs: np.ndarray, lengths: np.ndarray) -> list[_Plan]:
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
        (shape,) = self.planned_shapes
        packed = packing.pack(lengths, shape)
        return [_Plan(shape, pairs[index], rows) for index, rows in packed]


def _count_lengths(corpus: Corpus, most: int) -> np.ndarray:
    counts = np.zeros(most + 1, np.int64)
    for start in range(0, len(corpus), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        lengths = corpus.lengths(chunk).max(axis=1)
        fitting = lengths[lengths <= most]
        counts += np.bincount(fitting, minlength=most + 1)
    return counts

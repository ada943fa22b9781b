"""Assignment of pairs to batches: shuffling, buckets and packing."""

import math
from collections.abc import Iterator

import numpy as np

Shape = tuple[int, int]  # rows and length of a batch
_MULTIPLE = 8  # lengths are multiples of it, to match the tiles of accelerators
_MAX_BUCKETS = 5  # each is compiled once
_MAX_BATCHES_LEFT = 0.97  # a bucket must reduce the number of batches to this share
_MIN_PACKED_LENGTH = 64  # lets several short pairs share a row
_OPEN_ROWS = 32  # rows that packing keeps open; twice as many fill 0.2 % more
# Minimum length of evaluation batches, whose lengths are powers of two.
_MIN_LENGTH = 16


def permute(index: np.ndarray, size: int, seed: tuple[int, ...]) -> np.ndarray:
    """Applies a pseudo-random permutation of range(size) to indices, int64 [n].

    A Feistel network over the next power of four, with SplitMix64's finalizer, repeated
    for results outside range(size).
    """
    bits = (size - 1).bit_length()
    half = max(1, (bits + 1) // 2)
    mask = np.uint64((1 << half) - 1)
    keys = np.random.SeedSequence(seed).generate_state(6, np.uint64)

    def network(values):
        left = values >> half
        right = values & mask
        for key in keys:
            mixed = _mix(right ^ key) & mask
            left, right = right, left ^ mixed
        return (left << half) | right

    places = network(index.astype(np.uint64))
    while (outside := places >= size).any():
        places[outside] = network(places[outside])
    return places.astype(np.int64)


def _mix(bits: np.ndarray) -> np.ndarray:
    bits = (bits ^ (bits >> 30)) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> 27)) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> 31)


def pair_seeds(pairs: np.ndarray, seed: tuple[int, ...]) -> np.ndarray:
    """Returns pseudo-random numbers, int64 [n, 2] in 0..2³¹ − 1, for source and target.

    Each row depends only on the index of the pair and the non-negative `seed`.
    """
    (key,) = np.random.SeedSequence(seed).generate_state(1, np.uint64)
    sources = 2 * pairs.astype(np.uint64)
    sides = np.stack([sources, sources + 1], axis=1)
    mixed = _mix(_mix(sides) ^ key)
    return (mixed >> 33).astype(np.int64)


def bucket_lengths(
    counts: np.ndarray, tokens: int, windows: int, most: int
) -> list[int]:
    """Returns lengths to pad to, ascending, for few batches per epoch and few shapes.

    Greedily adds the length that saves most batches, until the savings are too small.
    Each window ends with partial batches, so a small corpus gets fewer lengths.

    Args:
      counts: Number of pairs of each length, [length].
      most: Upper limit of the lengths.
    """
    pairs_up_to = np.cumsum(counts) / windows
    largest = _round_up(int(np.flatnonzero(counts)[-1]), most)
    candidates = range(_MULTIPLE, largest, _MULTIPLE)

    def batches(lengths):
        pairs = np.diff(pairs_up_to[lengths], prepend=0)
        rows = np.maximum(1, tokens // np.array(lengths))
        return np.ceil(pairs / rows).sum()

    lengths = [largest]
    while len(lengths) < _MAX_BUCKETS:
        more = [sorted([*lengths, n]) for n in candidates if n not in lengths]
        best = min(more, key=batches, default=lengths)
        if batches(best) > _MAX_BATCHES_LEFT * batches(lengths):
            break
        lengths = best
    return lengths


def packed_length(longest: int, most: int = 1 << 31) -> int:
    return _round_up(max(_MIN_PACKED_LENGTH, longest), most)


def _round_up(length: int, most: int) -> int:
    return min(most, math.ceil(length / _MULTIPLE) * _MULTIPLE)


def first_fit(lengths: np.ndarray, size: int) -> np.ndarray:
    """Returns the row of each pair, [n]: the first that fits it, or a new one.

    Args:
      lengths: [n, 2], the lengths of both sides, each in 1..size.
      size: Positions of a row on each side.
    """
    # With this few open rows, lists are faster to scan than arrays: 1 µs per pair.
    rows: list[int] = []
    numbers: list[int] = []  # of the open rows, and their free positions on each side
    source_free: list[int] = []
    target_free: list[int] = []
    opened = 0
    for source, target in lengths.tolist():
        for k in range(len(numbers)):
            if source <= source_free[k] and target <= target_free[k]:
                break
        else:
            k = len(numbers)
            if k == _OPEN_ROWS:
                # Close the oldest row, which is the fullest.
                k -= 1
                del numbers[0], source_free[0], target_free[0]
            numbers.append(opened)
            source_free.append(size)
            target_free.append(size)
            opened += 1
        source_free[k] -= source
        target_free[k] -= target
        rows.append(numbers[k])
    return np.array(rows, np.int64)


def pack(lengths: np.ndarray, shape: Shape) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Packs pairs by `first_fit` into batches of one shape, (rows, length).

    Yields the indices of a batch's pairs, and the row of each, ascending.
    """
    rows_per_batch, length = shape
    rows = first_fit(lengths, length)
    order = np.argsort(rows, kind='stable')
    rows = rows[order]
    count = rows.max(initial=-1) + 1
    for first_row in range(0, count, rows_per_batch):
        limits = [first_row, first_row + rows_per_batch]
        start, end = np.searchsorted(rows, limits)
        yield order[start:end], rows[start:end] - first_row


def by_length(
    lengths: np.ndarray, tokens: int, devices: int
) -> Iterator[tuple[Shape, np.ndarray]]:
    """Yields batches of sequences, longest first: (rows, length), and their indices.

    Lengths are padded to a power of two. Only the last batch has empty rows. A batch
    has at most `tokens` positions per device, or one longer sequence.
    """
    order = np.argsort(-lengths, kind='stable')
    while len(order):
        longest = int(lengths[order[0]])
        length = max(_MIN_LENGTH, power_of_two(longest))
        rows = max(1, tokens // length)
        # A small set has fewer rows. With several devices, so has the remainder of any
        # set, to give each device some rows.
        num_rows = len(order) if devices > 1 else len(lengths)
        required = math.ceil(num_rows / devices)
        rows = devices * min(rows, power_of_two(required))
        yield (rows, length), order[:rows]
        order = order[rows:]


def power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()

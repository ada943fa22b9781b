"""Which pairs share a batch, by their lengths alone: shuffling, buckets and packing."""

from collections.abc import Iterator

import numpy as np

_MULTIPLE = 8  # of which lengths are multiples: the tiles of accelerators
_BUCKETS = 5  # at most; each is compiled once
_GAIN = 0.97  # a bucket more must leave at most this share of the batches
_PACKED_LENGTH = 64  # at least, so that several short pairs share a row
_OPEN_ROWS = 32  # rows that packing keeps open; twice as many fill 0.2 % more


def permute(index: np.ndarray, size: int, seed: tuple[int, ...]) -> np.ndarray:
    """Where a pseudo-random permutation of range(size) takes each index.

    A Feistel network over the next power of four, walked on where it leaves range(size). Any part
    of the permutation is had without the rest, so a corpus of any size is shuffled as a whole.

    Args:
      index: [n], each in 0..size - 1.
      size: how many indices there are.
      seed: non-negative integers.

    Returns:
      [n], int64, each in 0..size - 1.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half) - 1)
    keys = np.random.SeedSequence(seed).generate_state(6, np.uint64)

    def network(at: np.ndarray) -> np.ndarray:
        left, right = at >> half, at & mask
        for key in keys:
            left, right = right, left ^ (_mix(right ^ key) & mask)
        return (left << half) | right

    at = network(index.astype(np.uint64))
    while (outside := at >= size).any():
        at[outside] = network(at[outside])
    return at.astype(np.int64)


def _mix(bits: np.ndarray) -> np.ndarray:
    """Has every bit of the result depend on every bit (the finaliser of SplitMix64)."""
    bits = (bits ^ (bits >> 30)) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> 27)) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> 31)


def bucket_lengths(
    counts: np.ndarray, tokens: int, windows: int, most: int
) -> list[int]:
    """The lengths to pad to, ascending, so that an epoch has few batches and few shapes.

    Each is added where it saves most, while it saves enough. Batches that are not full count too,
    so a small corpus gets fewer lengths.

    Args:
      counts: [length], how many pairs have it.
      tokens: positions of a batch.
      windows: the parts of an epoch, each of which ends with batches that are not full.
      most: the last of the lengths is at most this and at least that of the longest pair.
    """
    until = np.cumsum(counts) / windows
    top = _round_up(int(np.flatnonzero(counts)[-1]), most)

    def batches(lengths: list[int]) -> float:
        pairs = np.diff(until[lengths], prepend=0)
        return np.ceil(pairs / np.maximum(1, tokens // np.array(lengths))).sum()

    lengths = [top]
    while len(lengths) < _BUCKETS:
        more = [
            sorted([*lengths, n])
            for n in range(_MULTIPLE, top, _MULTIPLE)
            if n not in lengths
        ]
        best = min(more, key=batches, default=lengths)
        if batches(best) > _GAIN * batches(lengths):
            break
        lengths = best
    return lengths


def packed_length(counts: np.ndarray, most: int) -> int:
    """The length of a packed row: what the longest pair needs, as attention is quadratic in it."""
    return _round_up(max(_PACKED_LENGTH, int(np.flatnonzero(counts)[-1])), most)


def _round_up(length: int, most: int) -> int:
    return min(most, -(-length // _MULTIPLE) * _MULTIPLE)


def first_fit(lengths: np.ndarray, size: int) -> np.ndarray:
    """The row of each pair: the first open one with room for it on both sides, or a new one.

    Args:
      lengths: [n, 2], of a pair's two sides, each in 1..size.
      size: positions of a row on each side.

    Returns:
      [n], the rows numbered from 0.
    """
    # Lists and not arrays: a scan over this few open rows is faster so, 1 µs a pair.
    numbers, source_room, target_room, rows = [], [], [], []
    opened = 0
    for source, target in lengths.tolist():
        for k in range(len(numbers)):
            if source <= source_room[k] and target <= target_room[k]:
                break
        else:
            k = len(numbers)
            if k == _OPEN_ROWS:  # the oldest is the fullest
                k -= 1
                del numbers[0], source_room[0], target_room[0]
            numbers.append(opened)
            source_room.append(size)
            target_room.append(size)
            opened += 1
        source_room[k] -= source
        target_room[k] -= target
        rows.append(numbers[k])
    return np.array(rows, np.int64)


def by_length(
    lengths: np.ndarray, tokens: int, multiple: int
) -> Iterator[tuple[tuple[int, int], np.ndarray]]:
    """All of a set, longest first, in batches of few shapes; for what leaves nothing out.

    Lengths are padded to a power of two, and a batch takes as many as its shape holds, so that only
    the last one has empty rows. One longer than `tokens` still gets its batch.

    Yields:
      The shape (rows, length), rows a multiple of `multiple`, and the indices in its first rows.
    """
    order = np.argsort(-lengths, kind='stable')
    while len(order):
        length = max(16, 1 << (int(lengths[order[0]]) - 1).bit_length())
        rows = max(multiple, tokens // length // multiple * multiple)
        yield (rows, length), order[:rows]
        order = order[rows:]

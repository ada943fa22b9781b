"""Pairs of a corpus laid out as the arrays of a batch."""

import numpy as np

from experiments.data.corpus import Corpus, Ragged
from experiments.data.tokenizer import BOS, EOS

Batch = dict[str, np.ndarray]


def pairs_batch(
    corpus: Corpus, shape: tuple[int, int], pairs: np.ndarray, rows: np.ndarray
) -> Batch:
    """Both sides of pairs, int32 [rows, length] each.

    Args:
      corpus: where the pairs are.
      shape: (rows, length); length is enough for what a row gets, EOS included.
      pairs: [n], indices into the corpus.
      rows: [n], the row of each, ascending; a row may get several, one behind the other, or none.

    Returns:
      `source` and `labels`: each pair's tokens and EOS.
      `inputs`: the labels shifted right, BOS first.
      `source_segments` and `target_segments`: which pair of the row a token belongs to, from 1.
      `source_positions` and `target_positions`: from 0 in each pair.
      Where there is no token, all are 0.
    """
    labels, segments, positions = _lay_out(corpus.target, shape, pairs, rows)
    before = np.pad(labels[:, :-1], ((0, 0), (1, 0)))
    return source_batch(corpus.source, shape, pairs, rows) | {
        'inputs': np.where(positions == 0, BOS, before) * (segments > 0),
        'labels': labels,
        'target_segments': segments,
        'target_positions': positions,
    }


def source_batch(
    source: Ragged, shape: tuple[int, int], pairs: np.ndarray, rows: np.ndarray
) -> Batch:
    """The source side alone, as in `pairs_batch`."""
    tokens, segments, positions = _lay_out(source, shape, pairs, rows)
    return {
        'source': tokens,
        'source_segments': segments,
        'source_positions': positions,
    }


def _lay_out(
    side: Ragged, shape: tuple[int, int], pairs: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """int32 [3, rows, length]: tokens, segments and positions of one side."""
    lengths = side.lengths(pairs) + 1
    begins = np.cumsum(lengths) - lengths  # of each pair, were all in one row
    first = np.searchsorted(rows, rows)  # the first pair of the same row
    columns = begins - begins[first]
    segments = np.arange(len(pairs)) - first + 1
    # From here on one entry a token.
    pair = np.repeat(np.arange(len(pairs)), lengths)
    positions = np.arange(len(pair)) - begins[pair]
    tokens = np.full(len(pair), EOS)
    inner = positions < (lengths - 1)[pair]
    tokens[inner] = side.tokens[(side.offsets[pairs][pair] + positions)[inner]]
    result = np.zeros((3, shape[0] * shape[1]), np.int32)
    place = (rows * shape[1] + columns)[pair] + positions
    result[:, place] = tokens, segments[pair], positions
    return result.reshape(3, *shape)

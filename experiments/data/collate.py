"""Collates pairs of a corpus into the arrays of a batch."""

import numpy as np

from experiments.data.corpus import Corpus, RaggedArray

Batch = dict[str, np.ndarray]


def pairs_batch(
    corpus: Corpus, shape: tuple[int, int], pairs: np.ndarray, rows: np.ndarray
) -> Batch:
    """Both sides of pairs, int32 [rows, length] each.

    Args:
      corpus: where the pairs are.
      shape: (rows, length); the length is enough for all that a row gets, EOS included.
      pairs: [n], indices into the corpus.
      rows: [n], the row of each pair, ascending; a row may get several pairs, one
        behind the other, or none.

    Returns:
      `labels`: each target's tokens and the end token.
      `source`: each source's tokens and what sources end with.
      `inputs`: the labels shifted right, the start token first.
      `source_segments` and `target_segments`: which pair of its row a token belongs to,
        from 1.
      `source_positions` and `target_positions`: of a token in its pair, from 0.
      Where there is no token, these are padding, and the others 0.
    """
    special = corpus.special_tokens
    source, source_segments, source_positions = _collate_side(
        corpus.source, shape, pairs, rows, corpus.source_end, special.padding
    )
    labels, segments, positions = _collate_side(
        corpus.target, shape, pairs, rows, special.end, special.padding
    )
    shifted = np.pad(labels[:, :-1], ((0, 0), (1, 0)))
    inputs = np.where(positions == 0, special.start, shifted)
    return {
        'source': source,
        'source_segments': source_segments,
        'source_positions': source_positions,
        'inputs': np.where(segments > 0, inputs, special.padding),
        'labels': labels,
        'target_segments': segments,
        'target_positions': positions,
    }


def _collate_side(
    side: RaggedArray,
    shape: tuple[int, int],
    pairs: np.ndarray,
    rows: np.ndarray,
    end: int | None,
    padding: int,
) -> np.ndarray:
    """int32 [3, rows, length]: tokens, segments and positions of one side."""
    number, length = shape
    # One entry a pair: its tokens, where it begins in its row, which of the row it is.
    own_lengths = side.lengths(pairs)
    lengths = own_lengths + (end is not None)
    begins = np.cumsum(lengths) - lengths  # if all pairs were in one row
    first_of_row = np.searchsorted(rows, rows)
    columns = begins - begins[first_of_row]
    segments = np.arange(len(pairs)) - first_of_row + 1
    # One entry a token, from here on.
    pair = np.repeat(np.arange(len(pairs)), lengths)
    positions = np.arange(len(pair)) - begins[pair]
    tokens = np.full(len(pair), padding if end is None else end)
    is_text = positions < own_lengths[pair]
    place_in_corpus = side.offsets[pairs][pair] + positions
    tokens[is_text] = side.tokens[place_in_corpus[is_text]]

    result = np.zeros((3, number * length), np.int32)
    result[0] = padding
    first_place = rows * length + columns
    place = first_place[pair] + positions
    result[0, place] = tokens
    result[1, place] = segments[pair]
    result[2, place] = positions
    return result.reshape(3, number, length)

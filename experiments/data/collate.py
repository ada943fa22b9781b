"""Collates pairs of a corpus into the arrays of a batch."""

from typing import Any

import jax
import numpy as np

from experiments.data.corpus import Corpus, RaggedArray
from experiments.data.packing import Shape
from flaxformer_lite.training.batch import BATCH_ARRAYS

Batch = dict[str, np.ndarray]


def abstract_batch(
    shape: tuple[int, ...], features: int | None
) -> dict[str, jax.ShapeDtypeStruct]:
    """What `pairs_batch` gives, by shapes and dtypes.

    Args:
      shape: (rows, length).
      features: of the vectors that sources are; None: they are ids.
    """
    ids = jax.ShapeDtypeStruct(shape, np.int32)
    batch: dict[str, Any] = {name: ids for name in BATCH_ARRAYS}
    if features:
        batch['source'] = jax.ShapeDtypeStruct((*shape, features), np.float32)
    return batch


def pairs_batch(
    corpus: Corpus, shape: Shape, pairs: np.ndarray, rows: np.ndarray
) -> Batch:
    """Both sides of pairs, int32 [rows, length] each; vectors [rows, length, features].

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
    source, source_segments, source_positions = collate_side(
        corpus.source, shape, pairs, rows, corpus.source_end, special.padding
    )
    labels, segments, positions = collate_side(
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


def collate_side(
    side: RaggedArray,
    shape: Shape,
    pairs: np.ndarray,
    rows: np.ndarray,
    end: int | None,
    padding: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """int32 [rows, length]: tokens, segments and positions of one side.

    Vectors are float32 [rows, length, features], and 0 where there is no token.

    Args:
      side: where its tokens are.
      shape, pairs, rows: as `pairs_batch` takes them.
      end: what each ends with; None for nothing.
      padding: what stands where there is no token.
    """
    features = side.tokens.shape[1:]
    dtype = np.float32 if features else np.int32
    blank = 0 if features else padding
    # One entry a pair: its tokens, where it begins in its row, which of the row it is.
    own_lengths = side.lengths(pairs)
    lengths = own_lengths + (end is not None)
    begins = np.cumsum(lengths) - lengths  # if all pairs were in one row
    numbers = np.arange(len(pairs))
    first_of_row = np.searchsorted(rows, rows)
    columns = begins - begins[first_of_row]
    segments = numbers - first_of_row + 1
    # One entry a token, from here on.
    pair = np.repeat(numbers, lengths)
    positions = np.arange(len(pair)) - begins[pair]
    is_text = positions < own_lengths[pair]
    place_in_corpus = side.offsets[pairs][pair] + positions
    behind = blank if end is None else end
    tokens = np.full((len(pair), *features), behind, dtype)
    tokens[is_text] = side.tokens[place_in_corpus[is_text]]

    place = (rows[pair], columns[pair] + positions)
    tokens_BT = np.full((*shape, *features), blank, dtype)
    tokens_BT[place] = tokens
    segments_BT = np.zeros(shape, np.int32)
    segments_BT[place] = segments[pair]
    positions_BT = np.zeros(shape, np.int32)
    positions_BT[place] = positions
    return tokens_BT, segments_BT, positions_BT

"""Collation of pairs into the arrays of a batch."""

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
    """Returns the shapes and dtypes of a `pairs_batch` of `shape` (rows, length).

    `features` is the size of source vectors, or None for ids.
    """
    ids = jax.ShapeDtypeStruct(shape, np.int32)
    batch: dict[str, Any] = {name: ids for name in BATCH_ARRAYS}
    if features:
        batch['source'] = jax.ShapeDtypeStruct((*shape, features), np.float32)
    return batch


def pairs_batch(
    corpus: Corpus, shape: Shape, pairs: np.ndarray, rows: np.ndarray
) -> Batch:
    """Collates pairs into int32 [rows, length]; vectors into [rows, length, features].

    Args:
      shape: (rows, length). The length must suffice for each row, with EOS.
      pairs: [n], indices into the corpus.
      rows: [n], the row of each pair, ascending.

    Returns:
      `source` and `labels` with their end tokens, and `inputs`, the labels shifted
      right. For both sides, `…_segments` numbers a row's pairs from 1, with 0 for
      padding, and `…_positions` a pair's tokens from 0.
    """
    special = corpus.special_tokens
    source, source_segments, source_positions = collate_side(
        corpus.source, shape, pairs, rows, corpus.source_eos, special.padding
    )
    labels, segments, positions = collate_side(
        corpus.target, shape, pairs, rows, special.eos, special.padding
    )
    shifted = np.pad(labels[:, :-1], ((0, 0), (1, 0)))
    inputs = np.where(positions == 0, special.bos, shifted)
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
    """Returns tokens, segments and positions of one side; `end` is appended, if any."""
    features = side.tokens.shape[1:]
    dtype = np.float32 if features else np.int32
    blank = 0 if features else padding
    # One entry per pair: number of tokens, first column in its row, index in its row.
    own_lengths = side.lengths(pairs)
    lengths = own_lengths + (end is not None)
    starts = np.cumsum(lengths) - lengths  # if all pairs were in one row
    numbers = np.arange(len(pairs))
    first_of_row = np.searchsorted(rows, rows)
    columns = starts - starts[first_of_row]
    segments = numbers - first_of_row + 1
    # From here on, one entry per token.
    pair = np.repeat(numbers, lengths)
    positions = np.arange(len(pair)) - starts[pair]
    is_text = positions < own_lengths[pair]
    corpus_index = side.offsets[pairs][pair] + positions
    suffix_id = blank if end is None else end
    tokens = np.full((len(pair), *features), suffix_id, dtype)
    tokens[is_text] = side.tokens[corpus_index[is_text]]

    place = (rows[pair], columns[pair] + positions)
    tokens_BT = np.full((*shape, *features), blank, dtype)
    tokens_BT[place] = tokens
    segments_BT = np.zeros(shape, np.int32)
    segments_BT[place] = segments[pair]
    positions_BT = np.zeros(shape, np.int32)
    positions_BT[place] = positions
    return tokens_BT, segments_BT, positions_BT

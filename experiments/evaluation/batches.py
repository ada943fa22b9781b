"""Batches of what is scored or translated: each pair or sentence once, by length."""

from collections.abc import Iterator

import numpy as np

from experiments.data import packing
from experiments.data.collate import Batch, pairs_batch, source_batch
from experiments.data.corpus import Corpus, RaggedArray
from flaxformer_lite.special_tokens import DEFAULT_TOKENS


def evaluation_batches(
    corpus: Corpus, tokens: int, devices: int = 1
) -> Iterator[tuple[Batch, np.ndarray]]:
    """Every pair of a set once, however long it is.

    Args:
      corpus: the set.
      tokens: positions of a batch for each device, at most, unless a pair has more.
      devices: how many divide the rows of a batch.

    Yields:
      A batch, and the indices of the pairs in its first rows; rows after those are
      empty.
    """
    lengths = corpus.lengths().max(axis=1)
    for shape, pairs in packing.by_length(lengths, tokens, devices):
        yield pairs_batch(corpus, shape, pairs, np.arange(len(pairs))), pairs


def source_batches(
    sentences: list[list[int]],
    tokens: int,
    devices: int = 1,
    padding: int = DEFAULT_TOKENS.padding,
    end: int | None = DEFAULT_TOKENS.end,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Sentences to translate, each once, however long it is.

    Args:
      sentences: tokens, without the end.
      tokens: positions of a batch for each device, at most, unless a sentence has more.
      devices: how many divide the rows of a batch.
      padding: what rows are filled up with.
      end: what each sentence ends with; None for nothing.

    Yields:
      source_BS of a batch, and the indices of the sentences in its first rows; rows
      after those are empty.
    """
    source = RaggedArray.from_rows(sentences)
    for shape, index in packing.by_length(source.lengths() + 1, tokens, devices):
        rows = np.arange(len(index))
        batch = source_batch(source, shape, index, rows, padding, end)
        yield batch['source'], index

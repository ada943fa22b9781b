"""Batches of training arrays, made from sentences."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.typing import ArrayLike

from flaxformer_lite.masks import TokenBatch
from flaxformer_lite.models.base import Model
from flaxformer_lite.special_tokens import DEFAULT_TOKENS

# The arrays of a batch, int32 (rows, length). A row may hold several packed pairs of a
# source and a target.
# - source, inputs, labels: tokens or padding. The inputs are the labels, shifted right
#   after a start token. A source may be vectors, float32 (rows, length, features); an
#   all-zero vector is padding.
# - source_segments, target_segments: the pair's number in its row, from 1; 0 for
#   padding.
# - source_positions, target_positions: the token's position in its sentence, from 0.
Batch = Mapping[str, jax.Array]
BATCH_ARRAYS = (
    'source',
    'source_segments',
    'source_positions',
    'inputs',
    'labels',
    'target_segments',
    'target_positions',
)
# Sentences, one per row: lists of tokens, or a padded array (rows, length).
Sentences = Sequence[Sequence[int]] | jax.Array
# Or vectors: one array (length, features) per row, or one padded array.
Sources = Sentences | Sequence[ArrayLike]


def make_batch(
    source: Sources,
    target: Sentences,
    bos: int | None = None,
    padding: int | None = None,
    *,
    model: Model | None = None,
    length: int | None = None,
) -> dict[str, jax.Array]:
    """Returns the arrays of `BATCH_ARRAYS` for pairs of sentences, one pair per row.

    Always pass `model` for pretrained checkpoints, whose special tokens differ.

    Args:
      source, target: Equally many rows of tokens, with end tokens. A source may be
        vectors (length, features).
      bos, padding: Start and padding token. Default to the model's; without a model, to
        2 and 0.
      model: Provides special tokens, and vocabulary sizes to check tokens.
      length: Length of all rows. Defaults to the longest.

    Returns:
      int32 arrays: (rows, longest source) for the source and (rows, longest target) for
      the others, or (rows, `length`) for all. Vectors are float32 (…, features).

    Raises:
      ValueError: Rows aren't tokens of the vocabulary, the numbers of sources and
        targets differ, a row is longer than `length`, or padding precedes a token of a
        target.

    Examples:
      >>> batch = make_batch(source=[[5, 6, 1], [7, 1]], target=[[8, 1], [9, 3, 1]])

      >>> batch['inputs'].tolist()
      [[2, 8, 0], [2, 9, 3]]

      >>> batch['labels'].tolist()
      [[8, 1, 0], [9, 3, 1]]
    """
    tokens = model.special_tokens if model else DEFAULT_TOKENS
    bos = tokens.bos if bos is None else bos
    padding = tokens.padding if padding is None else padding
    target_size = model and model.vocab_size
    source_size = model and (model.source_vocab_size or model.vocab_size)
    source_BS = pad_source(source, padding, source_size, length)
    labels_BT = pad_rows(target, 'target', padding, target_size, length)
    if len(source_BS) != len(labels_BT):
        raise ValueError(
            f'target must have a row for each of the {len(source_BS)} sources, not '
            f'{len(labels_BT)} rows'
        )
    _check_padding_last(labels_BT, padding)
    bos_B1 = jnp.full((len(labels_BT), 1), bos, jnp.int32)
    shifted_BT = jnp.concatenate([bos_B1, labels_BT[:, :-1]], 1)
    sources = TokenBatch.from_tokens(source_BS, padding)
    targets = TokenBatch.from_tokens(labels_BT, padding)
    return {
        'source': source_BS,
        'source_segments': sources.segments_BT,
        'source_positions': sources.positions_BT,
        'inputs': jnp.where(targets.valid_BT, shifted_BT, padding),
        'labels': labels_BT,
        'target_segments': targets.segments_BT,
        'target_positions': targets.positions_BT,
    }


def _check_padding_last(labels_BT: jax.Array, padding: int) -> None:
    """Raises ValueError if padding precedes a token, whose input would be padding."""
    if isinstance(labels_BT, Tracer):
        return
    is_token_BT = labels_BT != padding
    (rows,) = (is_token_BT[:, 1:] & ~is_token_BT[:, :-1]).any(1).nonzero()
    for row in rows.tolist():
        raise ValueError(
            f'target, row {row}: padding comes before a token. Put it after the tokens.'
        )


def source_and_inputs(batch: Batch) -> tuple[TokenBatch, TokenBatch]:
    """Returns the arguments of a model's call; ValueError if an array is missing."""
    check_batch(batch)
    source = TokenBatch(
        batch['source'], batch['source_segments'], batch['source_positions']
    )
    inputs = TokenBatch(
        batch['inputs'], batch['target_segments'], batch['target_positions']
    )
    return source, inputs


def pad_source(
    source: Sources,
    padding: int = 0,
    vocab_size: int | None = None,
    length: int | None = None,
) -> jax.Array:
    """Like `pad_rows`; pads vectors with zeros to float32 (rows, length, features).

    Raises:
      ValueError: As `pad_rows`; or a vector is not finite or all zeros, or the numbers
        of features differ.

    Examples:
      >>> import numpy as np
      >>> frames = [np.ones((1, 2)), np.ones((3, 2))]
      >>> pad_source(frames).shape
      (2, 3, 2)
    """
    rows: Any = source
    if getattr(rows, 'ndim', 0) == 3:
        return _pad_to_length(jnp.asarray(rows, jnp.float32), 'source', 0, length)
    if not hasattr(rows, 'ndim') and any(getattr(x, 'ndim', 1) == 2 for x in rows):
        return _pad_to_length(_pad_vectors(rows), 'source', 0, length)
    return pad_rows(rows, 'source', padding, vocab_size, length)


def pad_rows(
    sentences: Sentences,
    name: str,
    padding: int = 0,
    vocab_size: int | None = None,
    length: int | None = None,
) -> jax.Array:
    """Returns sentences as one padded int32 array (rows, length).

    Args:
      name: Names the sentences in error messages.
      vocab_size: Exclusive upper bound of the tokens. Unchecked if None.

    Raises:
      ValueError: A row is too long, or not only tokens of the vocabulary.

    Examples:
      >>> pad_rows([[5, 6, 1], [7, 1]], 'sources').tolist()
      [[5, 6, 1], [7, 1, 0]]
    """
    rows_BT = _pad_to_length(
        _pad_tokens(sentences, name, padding), name, padding, length
    )
    # Traced tokens are unknown.
    if vocab_size is not None and rows_BT.size and not isinstance(rows_BT, Tracer):
        largest = int(rows_BT.max())
        if largest >= vocab_size:
            raise ValueError(
                f'{name} contains token id {largest}, but vocab_size={vocab_size} '
                f'allows only ids from 0 to {vocab_size - 1}'
            )
    return rows_BT


def _pad_to_length(
    rows_BT: jax.Array, name: str, padding: int, length: int | None
) -> jax.Array:
    if length is None:
        return rows_BT
    missing = length - rows_BT.shape[1]
    if missing < 0:
        raise ValueError(
            f'{name} has a row of {rows_BT.shape[1]} tokens, more than '
            f'length={length}: give a larger length, or cut the row'
        )
    widths = [(0, 0), (0, missing), (0, 0)][: rows_BT.ndim]
    return jnp.pad(rows_BT, widths, constant_values=padding)


def _pad_vectors(source: Any) -> jax.Array:
    rows = [jnp.asarray(row, jnp.float32) for row in source]
    features = rows[0].shape[-1]
    longest = max(map(len, rows))
    for i, row in enumerate(rows):
        if row.ndim != 2 or row.shape[1] != features:
            raise ValueError(
                f'source, row {i}: vectors must be (length, {features}), not '
                f'{row.shape}'
            )
        if not (jnp.isfinite(row).all() and row.any(1).all()):
            raise ValueError(
                f'source, row {i}: vectors must be finite and not all zeros, which '
                'means padding. Add a feature that is always 1 to keep zeros apart '
                'from padding.'
            )
    padded = [jnp.pad(row, ((0, longest - len(row)), (0, 0))) for row in rows]
    return jnp.stack(padded)


def _pad_tokens(sentences: Sentences, name: str, padding: int) -> jax.Array:
    if hasattr(sentences, 'ndim'):
        array: Any = sentences
        is_integer = jnp.issubdtype(array.dtype, jnp.integer)
        if array.ndim != 2 or array.shape[1] == 0 or not is_integer:
            raise ValueError(
                f'{name} must be whole numbers (rows, length), not '
                f'{array.dtype} {array.shape}'
            )
        return jnp.asarray(array, jnp.int32)
    try:
        rows = [[operator.index(token) for token in row] for row in sentences]
    except TypeError:
        raise ValueError(f'{name} must be rows of tokens, a list for each') from None
    for i, row in enumerate(rows):
        if row and (min(row) < 0 or max(row) >= 2**31 or padding in row):
            raise ValueError(
                f'{name}, row {i}: tokens must be at least 0, and none of them may be '
                f'{padding}, which is padding'
            )
    length = max([1, *map(len, rows)])
    padded = [row + [padding] * (length - len(row)) for row in rows]
    return jnp.asarray(padded, jnp.int32).reshape(len(rows), length)


def check_batch(batch: Batch) -> None:
    """Raises ValueError if an array of `BATCH_ARRAYS` is missing."""
    missing = [name for name in BATCH_ARRAYS if name not in batch]
    if missing:
        raise ValueError(
            f'batch: missing {", ".join(missing)}. Create it with make_batch.'
        )


def check_variables(variables: Any) -> None:
    """Raises ValueError if variables lack the 'params' level of `model.init`."""
    if not (isinstance(variables, Mapping) and 'params' in variables):
        raise ValueError(
            "variables must be {'params': …}, as returned by model.init or "
            'TrainState.variables, not a bare parameter tree'
        )

"""Encoding of packed sources: several short ones share a row, instead of padding.

On a CPU, where padding costs as much as text, this makes decoding faster.
"""

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from flaxformer_lite.masks import TokenBatch

Encoded = TypeVar('Encoded')

_LENGTH = 64  # of a packed row, unless a source is longer
_POSITIONS = 512  # encoded at a time

# As in `ops/choose.py`: part of JAX's cache key, so a change retraces functions.
_are_packed = jax.make_user_context(False)


def packed_sources(are: bool = True) -> contextlib.AbstractContextManager[Any]:
    """Context in which `prefill` packs the sources of an encoder-decoder.

    Results are the same but for rounding. Open the context during tracing.
    """
    return _are_packed(are)


def are_packed() -> bool:
    return _are_packed.value


def encode_packed(
    encode: Callable[[TokenBatch], Encoded], source: TokenBatch
) -> Encoded:
    """Returns `encode(source)`, computed on packed rows, some at a time.

    Args:
      encode: Returns an array BSD, or a pytree of them.
      source: One sentence per row. A small batch isn't packed.
    """
    if source.valid_BT.size <= _POSITIONS:
        return encode(source)
    length = max(_LENGTH, source.tokens_BT.shape[1])
    chunk = max(1, _POSITIONS // length)
    packed, index_BS, used = _pack(source, length, chunk)

    def rows_from(start):
        return jax.tree.map(
            lambda x: jax.lax.dynamic_slice_in_dim(x, start, chunk), packed
        )

    def empty(x):
        return jnp.zeros((len(packed.tokens_BT), *x.shape[1:]), x.dtype)

    def encode_chunk(carried):
        start, outputs = carried
        found = encode(rows_from(start))
        outputs = jax.tree.map(
            lambda x, new: jax.lax.dynamic_update_slice_in_dim(x, new, start, 0),
            outputs,
            found,
        )
        return start + chunk, outputs

    outputs = jax.tree.map(empty, jax.eval_shape(encode, rows_from(0)))
    _, outputs = jax.lax.while_loop(
        lambda carried: carried[0] < used, encode_chunk, (0, outputs)
    )
    return jax.tree.map(lambda x_RTD: _flat(x_RTD)[index_BS], outputs)


def _pack(
    source: TokenBatch, length: int, multiple: int
) -> tuple[TokenBatch, jax.Array, jax.Array]:
    """Puts each sentence into the current row, or into the next if it doesn't fit.

    Returns:
      The rows RT, the index of each token in the flattened rows (0 for padding), and
      the number of rows in use.
    """
    batch, longest = source.tokens_BT.shape[:2]
    # Each row holds at least this many sentences, except the last.
    fitting = length // longest
    rows = -(-batch // fitting)
    rows += -rows % multiple

    def place(carried, tokens):
        row, end = carried
        is_full = end + tokens > length
        row = row + is_full
        start = jnp.where(is_full, 0, end)
        return (row, start + tokens), row * length + start

    tokens_B = source.valid_BT.sum(1)
    begin = jnp.int32(0), jnp.int32(0)
    (last, _), start_B = jax.lax.scan(place, begin, tokens_B)
    index_BS = start_B[:, None] + source.positions_BT
    written_BS = jnp.where(source.valid_BT, index_BS, rows * length)
    segments_BS = jnp.arange(1, batch + 1)[:, None] * source.valid_BT

    def scatter(x_BS):
        empty = jnp.zeros((rows * length, *x_BS.shape[2:]), x_BS.dtype)
        filled = empty.at[written_BS].set(x_BS, mode='drop')
        return filled.reshape(rows, length, *x_BS.shape[2:])

    packed = source._replace(segments_BT=segments_BS)
    packed = jax.tree.map(scatter, packed)
    return packed, jnp.where(source.valid_BT, index_BS, 0), last + 1


def _flat(x_RTD: jax.Array) -> jax.Array:
    return x_RTD.reshape(-1, *x_RTD.shape[2:])

"""Token batches and attention masks (paper §3.2.3).

Masks are bool; True means "may attend".
"""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp


class TokenBatch(NamedTuple):
    """Rows of tokens, int32 BT. A row may hold several packed sentences.

    Attributes:
      tokens_BT: Token ids, or vectors, float BTF.
      segments_BT: The sentence's number in its row, from 1; 0 for padding.
      positions_BT: The token's position in its sentence, from 0.

    Examples:
      >>> batch = TokenBatch.from_tokens(jnp.array([[5, 6, 7, 0]]))
      >>> packed = batch._replace(segments_BT=jnp.array([[1, 1, 2, 2]]))
      >>> print(packed.segment_mask(packed)[0, 0].astype(int))
      [[1 1 0 0]
       [1 1 0 0]
       [0 0 1 1]
       [0 0 1 1]]
    """

    tokens_BT: jax.Array
    segments_BT: jax.Array
    positions_BT: jax.Array

    @classmethod
    def from_tokens(
        cls, tokens_BT: 'jax.Array | TokenBatch', padding: int = 0
    ) -> 'TokenBatch':
        """Creates a batch with one sentence per row.

        A token equal to `padding` or an all-zero vector is padding. It gets position 0.
        A `TokenBatch` is returned unchanged.

        Examples:
          >>> batch = TokenBatch.from_tokens(jnp.array([[0, 5, 6, 0]]))
          >>> batch.segments_BT.tolist(), batch.positions_BT.tolist()
          ([[0, 1, 1, 0]], [[0, 0, 1, 0]])
        """
        if isinstance(tokens_BT, TokenBatch):
            return tokens_BT
        if tokens_BT.ndim == 3:
            return cls._with_valid(tokens_BT, (tokens_BT != 0).any(-1))
        return cls._with_valid(tokens_BT, tokens_BT != padding)

    @classmethod
    def from_inputs(
        cls, tokens_BT: 'jax.Array | TokenBatch', padding: int = 0
    ) -> 'TokenBatch':
        """Like `from_tokens`, but the first token of a row is never padding.

        Examples:
          >>> TokenBatch.from_inputs(jnp.array([[0, 5, 6, 0]])).segments_BT.tolist()
          [[1, 1, 1, 0]]
        """
        if isinstance(tokens_BT, TokenBatch):
            return tokens_BT
        is_first_T = jnp.arange(tokens_BT.shape[1]) == 0
        is_token_BT = tokens_BT != padding
        return cls._with_valid(tokens_BT, is_token_BT | is_first_T[None])

    @classmethod
    def _with_valid(cls, tokens_BT, valid_BT):
        segments_BT = valid_BT.astype(jnp.int32)
        # Counts tokens, because padding may be anywhere in a row.
        count_BT = jnp.cumsum(segments_BT, axis=1)
        return cls(tokens_BT, segments_BT, segments_BT * (count_BT - 1))

    @property
    def valid_BT(self) -> jax.Array:
        """bool, False for padding."""
        return self.segments_BT != 0

    def segment_mask(self, keys: Self) -> jax.Array:
        """Returns the mask of keys in the query's sentence, B1TS; excludes padding."""
        query_segment = self.segments_BT[:, None, :, None]
        key_segment = keys.segments_BT[:, None, None, :]
        return (query_segment == key_segment) & (key_segment != 0)

    def causal_mask(self) -> jax.Array:
        """Returns the mask of keys up to the query in its sentence, B1TT."""
        query_position = self.positions_BT[:, None, :, None]
        key_position = self.positions_BT[:, None, None, :]
        return self.segment_mask(self) & (key_position <= query_position)

    def prefix_mask(self, length: int) -> jax.Array:
        """Like `causal_mask`, but all tokens see the first `length` tokens, B1TT.

        Examples:
          >>> batch = TokenBatch.from_tokens(jnp.array([[5, 6, 7]]))
          >>> print(batch.prefix_mask(2)[0, 0].astype(int))
          [[1 1 0]
           [1 1 0]
           [1 1 1]]
        """
        is_prefix_S = jnp.arange(self.segments_BT.shape[1]) < length
        of_prefix = self.segment_mask(self) & is_prefix_S[None, None, None]
        return self.causal_mask() | of_prefix

    def following(self, source: Self) -> Self:
        """Shifts the positions so that they continue those of a source."""
        length_BT = self.segment_mask(source)[:, 0].sum(-1)
        positions_BT = jnp.where(self.valid_BT, self.positions_BT + length_BT, 0)
        return self._replace(positions_BT=positions_BT)


class AttentionContext(NamedTuple):
    """Masks and positions that attention needs in addition to its inputs.

    Attributes:
      valid_BT: False for padding, or None without padding.
      key_positions_BS: int32 positions of the keys. Defaults to those of the queries.
      bias_BHTS: Positional bias of the self-attention scores, or None.
    """

    positions_BT: jax.Array
    mask_BHTS: jax.Array
    cross_mask_BHTS: jax.Array | None = None
    valid_BT: jax.Array | None = None
    key_positions_BS: jax.Array | None = None
    bias_BHTS: jax.Array | None = None

    @property
    def cross(self) -> 'AttentionContext':
        """The context of cross-attention: its mask, and no bias."""
        assert self.cross_mask_BHTS is not None
        return AttentionContext(self.positions_BT, self.cross_mask_BHTS)

    @property
    def merged(self) -> 'AttentionContext':
        """The context of one attention over the source's keys, then the target's.

        Source keys get no positional bias.
        """
        assert self.cross_mask_BHTS is not None
        masks = self.cross_mask_BHTS, self.mask_BHTS
        outer = jnp.broadcast_shapes(*(x.shape[:-1] for x in masks))
        whole = [jnp.broadcast_to(x, (*outer, x.shape[-1])) for x in masks]
        mask_BHTS = jnp.concatenate(whole, -1)
        bias_BHTS = self.bias_BHTS
        if bias_BHTS is not None:
            source_length = self.cross_mask_BHTS.shape[-1]
            padding = [(0, 0), (0, 0), (0, 0), (source_length, 0)]
            bias_BHTS = jnp.pad(bias_BHTS, padding)
        return self._replace(mask_BHTS=mask_BHTS, bias_BHTS=bias_BHTS)


# Not an argument: only norm `batch` and feed-forward `mixture` need it, but all norms,
# residual connections and feed-forward networks would have to pass it on.
_valid: contextvars.ContextVar[jax.Array | None] = contextvars.ContextVar(
    'valid', default=None
)


@contextlib.contextmanager
def padding_known(valid_BT: jax.Array | None) -> Iterator[None]:
    """Context in which `padding_mask` returns `valid_BT`, around each layer's call."""
    token = _valid.set(valid_BT)
    try:
        yield
    finally:
        _valid.reset(token)


def padding_mask(shape: tuple[int, ...]) -> jax.Array:
    """Returns a bool BT mask, False for padding; all True outside of a context."""
    valid_BT = _valid.get()
    if valid_BT is None:
        return jnp.ones(shape, bool)
    return valid_BT

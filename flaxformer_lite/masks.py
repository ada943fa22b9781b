"""Rows of tokens, and which tokens may attend to which (paper §3.2.3).

Masks are bool, True = may attend.
"""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp


class TokenBatch(NamedTuple):
    """Rows of tokens, int32 BT each. A row may hold several sentences (packing).

    Attributes:
      tokens_BT: ids; or vectors in their place, float BTF.
      segments_BT: counts the sentences of a row from 1; 0 for padding.
      positions_BT: the position of each token in its own sentence, from 0.
    """

    tokens_BT: jax.Array
    segments_BT: jax.Array
    positions_BT: jax.Array

    @classmethod
    def from_tokens(
        cls, tokens_BT: 'jax.Array | TokenBatch', padding: int = 0
    ) -> 'TokenBatch':
        """Takes each row as one sentence and the token `padding` as none.

        Of vectors the one of zeros is none. Padding gets position 0, which every model
        has: rows may be padded beyond the length of a `learned` table. A `TokenBatch`
        is returned as it is.
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
        """As `from_tokens`, but a row's first token, the start token, is no padding.

        So it may have the number of padding: T5 and Marian start with padding.
        """
        if isinstance(tokens_BT, TokenBatch):
            return tokens_BT
        is_first_T = jnp.arange(tokens_BT.shape[1]) == 0
        is_token_BT = tokens_BT != padding
        return cls._with_valid(tokens_BT, is_token_BT | is_first_T[None])

    @classmethod
    def _with_valid(cls, tokens_BT, valid_BT):
        segments_BT = valid_BT.astype(jnp.int32)
        # Tokens are counted: padding may be anywhere in a row.
        count_BT = jnp.cumsum(segments_BT, axis=1)
        return cls(tokens_BT, segments_BT, segments_BT * (count_BT - 1))

    @property
    def valid_BT(self) -> jax.Array:
        """bool, False for padding."""
        return self.segments_BT != 0

    def segment_mask(self, keys: Self) -> jax.Array:
        """Every token to the keys of the same sentence, B1TS. Nothing sees padding."""
        query_segment = self.segments_BT[:, None, :, None]
        key_segment = keys.segments_BT[:, None, None, :]
        return (query_segment == key_segment) & (key_segment != 0)

    def causal_mask(self) -> jax.Array:
        """Every token to itself and those before it in the same sentence, B1TT."""
        query_position = self.positions_BT[:, None, :, None]
        key_position = self.positions_BT[:, None, None, :]
        return self.segment_mask(self) & (key_position <= query_position)

    def prefix_mask(self, length: int) -> jax.Array:
        """As `causal_mask`, but all tokens see the first so many of the row, B1TT."""
        is_prefix_S = jnp.arange(self.segments_BT.shape[1]) < length
        of_prefix = self.segment_mask(self) & is_prefix_S[None, None, None]
        return self.causal_mask() | of_prefix

    def following(self, source: Self) -> Self:
        """The same tokens, with positions that go on where those of a source end."""
        length_BT = self.segment_mask(source)[:, 0].sum(-1)
        positions_BT = jnp.where(self.valid_BT, self.positions_BT + length_BT, 0)
        return self._replace(positions_BT=positions_BT)


class AttentionContext(NamedTuple):
    """Everything that attention needs to know of the tokens beside their vectors.

    Attributes:
      positions_BT: int32, of the tokens that attend.
      mask_BHTS: self-attention: which keys each token may attend to.
      cross_mask_BHTS: the same for attention over the source; None without a source.
      valid_BT: False for padding; None where no token is padding.
      key_positions_BS: int32, of the keys of self-attention; None where the keys are
        those of the tokens themselves.
      bias_BHTS: what positions add to the scores of self-attention; None for nothing.
    """

    positions_BT: jax.Array
    mask_BHTS: jax.Array
    cross_mask_BHTS: jax.Array | None = None
    valid_BT: jax.Array | None = None
    key_positions_BS: jax.Array | None = None
    bias_BHTS: jax.Array | None = None

    @property
    def cross(self) -> 'AttentionContext':
        """The context of attention over the source: its mask, and no bias."""
        assert self.cross_mask_BHTS is not None
        return AttentionContext(self.positions_BT, self.cross_mask_BHTS)

    @property
    def merged(self) -> 'AttentionContext':
        """The context of one attention over keys of the source, then those of its own.

        Positions add nothing to the scores of the source.
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


_valid: contextvars.ContextVar[jax.Array | None] = contextvars.ContextVar(
    'valid', default=None
)


@contextlib.contextmanager
def padding_known(valid_BT: jax.Array | None) -> Iterator[None]:
    """Within it, `padding_mask` returns this mask.

    Only two modules ask whether a token is padding: batch normalisation and the mixture
    of experts, whose results depend on all tokens of a batch. Like a dropout key, the
    mask reaches them through the scope they run in, and not through the signature of
    every layer between. A stack opens the scope where it calls a layer, with the
    argument of that call: what is traced inside reads an array of the same trace.
    """
    token = _valid.set(valid_BT)
    try:
        yield
    finally:
        _valid.reset(token)


def padding_mask(shape: tuple[int, ...]) -> jax.Array:
    """bool BT of this shape, False for padding; all True where nothing is known."""
    valid_BT = _valid.get()
    if valid_BT is None:
        return jnp.ones(shape, bool)
    return valid_BT

"""Rows of tokens: where each stands, and which others it may attend to (paper §3.2.3)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from flaxformer_lite.shapes import Places


class Text(NamedTuple):
    """Rows of tokens, int32 BT each; segments count a row's sentences from 1, 0 for padding.

    Its masks are bool, True = may attend.
    """

    tokens_BT: jax.Array
    segments_BT: jax.Array
    pos_BT: jax.Array

    @classmethod
    def of(cls, rows: 'jax.Array | Text') -> 'Text':
        """Of tokens alone, each row is one sentence, and token 0 padding.

        That has position 0, which every model has: rows may be padded beyond a `learned` table.
        """
        return rows if isinstance(rows, Text) else cls._of(rows, rows != 0)

    @classmethod
    def of_inputs(cls, rows: 'jax.Array | Text') -> 'Text':
        """As `of`; the first token of each row is the start token, whatever its number.

        T5, for one, starts with 0, its padding.
        """
        if isinstance(rows, Text):
            return rows
        is_first_1T = jnp.arange(rows.shape[1])[None] == 0
        return cls._of(rows, (rows != 0) | is_first_1T)

    @classmethod
    def _of(cls, tokens_BT, valid_BT):
        pos_1T = jnp.arange(tokens_BT.shape[1], dtype=jnp.int32)[None]
        segments_BT = valid_BT.astype(jnp.int32)
        return cls(tokens_BT, segments_BT, segments_BT * pos_1T)

    @property
    def valid_BT(self) -> jax.Array:
        """bool, False for padding."""
        return self.segments_BT != 0

    def sees(self, keys: 'Text') -> jax.Array:
        """What is of the same sentence, B1TS; padding is seen by nothing."""
        same_B1TS = (
            self.segments_BT[:, None, :, None] == keys.segments_BT[:, None, None]
        )
        return same_B1TS & keys.valid_BT[:, None, None]

    def sees_before(self) -> jax.Array:
        """What is of the same sentence and not after a token, B1TT."""
        return self.sees(self) & (
            self.pos_BT[:, None, :, None] >= self.pos_BT[:, None, None]
        )

    def places(
        self, mask_BHTS: jax.Array, source_mask_BHTS: jax.Array | None = None
    ) -> Places:
        """Where its tokens stand, with what they may see."""
        return Places(self.pos_BT, self.valid_BT, mask_BHTS, source_mask_BHTS)

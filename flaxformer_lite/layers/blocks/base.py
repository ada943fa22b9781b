"""One layer of a stack (§3.1): what all kinds of blocks have, and how they are called.

Without a cache the tokens attend to each other. With one they are
the next tokens of the hypotheses of each sentence, are appended to the cache, and
attend to what it then holds.
"""

from typing import Any

import jax
from flax import linen as nn

from flaxformer_lite.kv_cache import BeamState, CacheState, KeyValues
from flaxformer_lite.layers.multi_head_attention import MultiHeadAttention
from flaxformer_lite.masks import AttentionContext
from flaxformer_lite.ranges import Checked


class Block(Checked, nn.Module):
    """What the blocks have in common. A variant overrides `__call__`.

    One that mixes tokens by something else than `self_attention` overrides
    `attend_to_self` instead, with `keep` and `init_cache`. What it does not call has no
    parameters.

    Attributes:
      self_attention: of the tokens to each other.
      feed_forward: a module of `feed_forward/`.
      residual: a module of `residual/`, the template of a sublayer's own.
      cross_attention: to the source; None in what is no decoder beside an encoder, and
        where it is merged.
      merged: whether self-attention is to the source as well, by the same matrices and
        in one softmax (Zhang et al. 2025, "T5Gemma 2").
    """

    self_attention: MultiHeadAttention
    feed_forward: nn.Module
    residual: nn.Module
    cross_attention: MultiHeadAttention | None = None
    merged: bool = False

    def project_source(
        self, encoded_BSD: jax.Array, positions_BS: jax.Array
    ) -> KeyValues:
        """The source's keys and values, as this layer of a decoder reads them."""
        if self.cross_attention is None:  # merged
            return self.self_attention.project_kv(encoded_BSD, None)
        return self.cross_attention.project_kv(encoded_BSD, positions_BS)

    def keep(self, h_BTD: jax.Array, positions_BT: jax.Array) -> Any:
        """What a cache begins with, of tokens as `attend_to_self` reads them.

        The first axis of its arrays is the rows of the batch.
        """
        return self.self_attention.project_kv(h_BTD, positions_BT)

    def init_cache(self, kept: Any, valid_BS: jax.Array) -> CacheState:
        """The cache that decoding begins with: `append` and `allocate` as `Cache` has.

        Args:
          kept: of what all hypotheses of a sentence share; may be of no tokens.
          valid_BS: bool, False for padding.
        """
        return self.self_attention.core_attention.init_cache(kept, valid_BS)

    def attend_to_self(
        self,
        h_BTD: jax.Array,
        context: AttentionContext,
        cache: CacheState | None,
        beam: BeamState | None,
        encoder_kv: KeyValues | None = None,
    ) -> tuple[jax.Array, Any]:
        """Self-attention → its result, and the new cache, or what `keep` gives.

        Where it is merged, a cache begins with the source's keys and values, and
        without a cache they are `encoder_kv`.
        """
        kv = self.keep(h_BTD, context.positions_BT)
        if self.merged:
            context = context.merged
        if cache is None:
            read = kv if encoder_kv is None else encoder_kv.followed_by(kv)
            return self.self_attention(h_BTD, read, context), kv
        cache, kv = cache.append(kv, beam)
        return self.self_attention(h_BTD, kv, context), cache

    def attend_to_source(
        self,
        h_BTD: jax.Array,
        context: AttentionContext,
        encoder_kv: KeyValues | None,
    ) -> jax.Array:
        """The result of cross-attention, of a block that has one."""
        assert self.cross_attention is not None and encoder_kv is not None
        return self.cross_attention(h_BTD, encoder_kv, context.cross)

    def __call__(
        self,
        x_BTD: jax.Array,
        context: AttentionContext,
        encoder_kv: KeyValues | None = None,
        cache: CacheState | None = None,
        beam: BeamState | None = None,
    ) -> tuple[jax.Array, CacheState]:
        """Runs the layer.

        Args:
          x_BTD: the residual stream, float32.
          context: the tokens' positions, and who sees whom: which of them are of one
            sentence, and padding.
          encoder_kv: the source's keys and values for this layer's cross-attention.
          cache: this layer's, while decoding.
          beam: the step and the visible slots, while decoding.

        Returns:
          The residual stream after the layer, and the layer's new cache; without a
          cache, what `keep` gives.
        """
        raise NotImplementedError

"""Base class of blocks, the layers of a stack (§3.1).

Without a cache, the tokens attend to each other. With a cache, each token extends a
hypothesis: it joins the cache and attends to it.
"""

from typing import Any, ClassVar

import jax
from flax import linen as nn

from flaxformer_lite.kv_cache import BeamState, CacheState, KeyValues
from flaxformer_lite.layers.multi_head_attention import MultiHeadAttention
from flaxformer_lite.masks import AttentionContext
from flaxformer_lite.sizes import SET_BY_MODEL
from flaxformer_lite.validation import Checked


class Block(Checked, nn.Module):
    """Layer of a stack. Variants override `__call__`.

    A block without `self_attention` overrides `attend_to_self`, `keep` and `init_cache`
    instead.

    Attributes:
      feed_forward: A module of `feed_forward/`.
      residual: A module of `residual/`, copied for each sublayer.
      cross_attention: Attention to the source, in the decoder of an encoder-decoder.
      merged: Whether self-attention also covers the source, with the same matrices and
        softmax (Zhang et al. 2025, "T5Gemma 2").
    """

    set_by_model: ClassVar[tuple[str, ...]] = (
        'self_attention',
        'feed_forward',
        'residual',
        'cross_attention',
        'merged',
    )
    self_attention: MultiHeadAttention = SET_BY_MODEL
    feed_forward: nn.Module = SET_BY_MODEL
    residual: nn.Module = SET_BY_MODEL
    cross_attention: MultiHeadAttention | None = None
    merged: bool = False

    @nn.nowrap
    def publishes(self, batch: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns shape and dtype of each value for `layer_scope.publish`, by name.

        A scan needs them before the first layer runs.
        """
        return {}

    def project_source(
        self, encoded_BSD: jax.Array, positions_BS: jax.Array
    ) -> KeyValues:
        """Computes the keys and values of the source for this decoder layer."""
        if self.cross_attention is None:  # merged attention
            return self.self_attention.project_kv(encoded_BSD, None)
        return self.cross_attention.project_kv(encoded_BSD, positions_BS)

    def keep(self, h_BTD: jax.Array, positions_BT: jax.Array) -> Any:
        """Returns what a cache stores of the tokens that `attend_to_self` reads.

        Axis 0 of its arrays is the batch.
        """
        return self.self_attention.project_kv(h_BTD, positions_BT)

    def init_cache(self, kept: Any, valid_BS: jax.Array) -> CacheState:
        """Returns the initial cache, with `append` and `allocate` methods like `Cache`.

        Args:
          kept: Result of `keep` for the prefix of all hypotheses; may cover no tokens.
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
        """Returns the self-attention output, and the new cache or the result of `keep`.

        In merged attention, a cache starts with the source's keys and values. Without a
        cache, the caller passes them as `encoder_kv`.
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
          x_BTD: Residual stream, float32.
          encoder_kv: The source's keys and values for this layer.
          cache, beam: This layer's cache, step and visible slots. Only while decoding.

        Returns:
          The new residual stream and the new cache; without a cache, the result of
          `keep`.
        """
        raise NotImplementedError

"""One layer of a stack (§3.1, figure 1): sublayers, each in a residual connection.

All three kinds are called alike, and each has its own copy of the residual connection
for every sublayer. Without a cache the tokens attend to each other. With one they are
the next tokens of the hypotheses of each sentence, are appended to the cache, and
attend to what it then holds.
"""

import jax
from flax import linen as nn

from flaxformer_lite.kv_cache import BeamState, CacheState, KeyValues
from flaxformer_lite.layers.multi_head_attention import MultiHeadAttention
from flaxformer_lite.masks import AttentionContext, padding_known


class Block(nn.Module):
    """What the blocks have in common.

    Attributes:
      self_attention: of the tokens to each other.
      feed_forward: a module of `feed_forward/`.
      residual: a module of `residual/`, the template of a sublayer's own.
      merged: whether self-attention is to the source as well, by the same matrices and
        in one softmax (Zhang et al. 2025, "T5Gemma 2").
    """

    self_attention: MultiHeadAttention
    feed_forward: nn.Module
    residual: nn.Module
    merged: bool = False

    def project_source(
        self, encoded_BSD: jax.Array, positions_BS: jax.Array
    ) -> KeyValues:
        """The source's keys and values, as this layer of a decoder reads them."""
        cross_attention = getattr(self, 'cross_attention', None)
        if cross_attention is None:  # merged
            return self.self_attention.project_kv(encoded_BSD, None)
        return cross_attention.project_kv(encoded_BSD, positions_BS)

    def attend_to_self(
        self,
        h_BTD: jax.Array,
        context: AttentionContext,
        cache: CacheState | None,
        beam: BeamState | None,
        encoder_kv: KeyValues | None = None,
    ) -> tuple[jax.Array, CacheState]:
        """Self-attention, with or without a cache → its result, and what to keep.

        Where it is merged, a cache begins with the source's keys and values, and
        without a cache they are `encoder_kv`.
        """
        kv = self.self_attention.project_kv(h_BTD, context.positions_BT)
        if self.merged:
            context = context.merged
        if cache is None:
            read = kv if encoder_kv is None else encoder_kv.followed_by(kv)
            return self.self_attention(h_BTD, read, context), kv
        cache, kv = cache.append(kv, beam)
        return self.self_attention(h_BTD, kv, context), cache

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
          context: the tokens' positions and masks.
          encoder_kv: the source's keys and values for this layer's cross-attention.
          cache: this layer's, while decoding.
          beam: the step and the visible slots, while decoding.

        Returns:
          The residual stream after the layer, and the layer's new cache; without a
          cache, the keys and values of the tokens.
        """
        raise NotImplementedError


class EncoderBlock(Block):
    """Figure 1, left: self-attention, feed-forward; causal, it is a decoder alone.

    With `merged` attention it is a decoder beside an encoder.
    """

    @nn.compact
    def __call__(self, x_BTD, context, encoder_kv=None, cache=None, beam=None):
        residual_1 = self.residual.copy(name='residual_1')
        residual_2 = self.residual.copy(name='residual_2')
        with padding_known(context.valid_BT):
            h_BTD = residual_1.before(x_BTD)
            h_BTD, cache = self.attend_to_self(h_BTD, context, cache, beam, encoder_kv)
            x_BTD = residual_1.after(x_BTD, h_BTD)

            h_BTD = residual_2.before(x_BTD)
            x_BTD = residual_2.after(x_BTD, self.feed_forward(h_BTD))
        return x_BTD, cache


class DecoderBlock(Block, kw_only=True):
    """Figure 1, right: masked self-attention, attention to the source, feed-forward."""

    cross_attention: MultiHeadAttention

    @nn.compact
    def __call__(self, x_BTD, context, encoder_kv: KeyValues, cache=None, beam=None):
        residual_1 = self.residual.copy(name='residual_1')
        residual_2 = self.residual.copy(name='residual_2')
        residual_3 = self.residual.copy(name='residual_3')
        with padding_known(context.valid_BT):
            h_BTD = residual_1.before(x_BTD)
            h_BTD, cache = self.attend_to_self(h_BTD, context, cache, beam)
            x_BTD = residual_1.after(x_BTD, h_BTD)

            h_BTD = residual_2.before(x_BTD)
            h_BTD = self.cross_attention(h_BTD, encoder_kv, context.cross)
            x_BTD = residual_2.after(x_BTD, h_BTD)

            h_BTD = residual_3.before(x_BTD)
            x_BTD = residual_3.after(x_BTD, self.feed_forward(h_BTD))
        return x_BTD, cache


class ParallelBlock(Block, kw_only=True):
    """All sublayers read the same h, and their sum joins the stream once.

    Wang and Komatsuzaki (2021, "GPT-J"). In a decoder the attention to the source is
    one of them.
    """

    cross_attention: MultiHeadAttention | None = None

    @nn.compact
    def __call__(self, x_BTD, context, encoder_kv=None, cache=None, beam=None):
        residual_1 = self.residual.copy(name='residual_1')
        with padding_known(context.valid_BT):
            h_BTD = residual_1.before(x_BTD)
            merged_kv = encoder_kv if self.merged else None
            y_BTD, cache = self.attend_to_self(h_BTD, context, cache, beam, merged_kv)
            if self.cross_attention is not None:
                assert encoder_kv is not None
                y_BTD += self.cross_attention(h_BTD, encoder_kv, context.cross)
            y_BTD += self.feed_forward(h_BTD)
            x_BTD = residual_1.after(x_BTD, y_BTD)
        return x_BTD, cache

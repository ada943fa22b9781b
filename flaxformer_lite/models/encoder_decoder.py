"""The encoder-decoder Transformer (Vaswani et al. 2017, figure 1)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from flaxformer_lite.kv_cache import KeyValues
from flaxformer_lite.layers.stack import Stack
from flaxformer_lite.masks import AttentionContext, TokenBatch
from flaxformer_lite.models.base import DecodeState, Model


class _Encoded(NamedTuple):
    """What decoding reads of the source.

    Attributes:
      kv: each decoder layer's keys and values of the source.
      mask_B11S: bool, False for padding of the source.
    """

    kv: tuple[KeyValues, ...]
    mask_B11S: jax.Array


class EncoderDecoder(Model, kw_only=True):
    """The encoder reads the source; the decoder the target so far, and the encoder.

    Attributes:
      encoder, decoder: stacks, the decoder's with attention to the source.
    """

    has_decoder_beside_encoder = True
    encoder: Stack
    decoder: Stack

    @classmethod
    def from_parts(cls, parts, vocab_size, **arguments):
        return cls(
            encoder=parts.stack('encoder'),
            decoder=parts.stack('decoder'),
            vocab_size=vocab_size,
            **parts.embeddings('encoder'),
            **arguments,
        )

    def lr_multiplier(self, path):
        block = self.decoder.block
        dense = self.dense
        if 'cross_attention' in path:
            dense = block.cross_attention.dense
        elif path[0] == 'decoder':
            dense = block.self_attention.dense
        return dense.kernel_init.lr_multiplier(path)

    @property
    def max_length(self):
        """The smaller table of learned positions, if a side has one."""
        limits = [
            stack.positions.max_length
            for stack in (self.encoder, self.decoder)
            if hasattr(stack.positions, 'max_length')
        ]
        return min(limits, default=None)

    def _encode(self, source: TokenBatch) -> tuple[KeyValues, ...]:
        """The source as each layer of the decoder reads it."""
        x_BSD = self.embed(self.source_VD, source.tokens_BT)
        context = AttentionContext(
            positions_BT=source.positions_BT,
            mask_BHTS=source.segment_mask(source),
            valid_BT=source.valid_BT,
        )
        encoded_BSD, _ = self.encoder(x_BSD, context)
        return self.decoder.cross_kv(encoded_BSD, source.positions_BT)

    def decode_hidden(self, source, inputs):
        encoder_kv = self._encode(source)
        x_BTD = self.embed(self.target_VD, inputs.tokens_BT)
        context = AttentionContext(
            positions_BT=inputs.positions_BT,
            mask_BHTS=inputs.causal_mask(),
            cross_mask_BHTS=inputs.segment_mask(source),
            valid_BT=inputs.valid_BT,
        )
        hidden_BTD, _ = self.decoder(x_BTD, context, encoder_kv)
        return hidden_BTD

    def prefill(self, source_BS):
        source = TokenBatch.from_tokens(source_BS, self.special_tokens.padding)
        mask_B11S = source.valid_BT[:, None, None]
        encoded = _Encoded(self._encode(source), mask_B11S)
        return DecodeState(encoded, self.decoder.empty_cache(source_BS.shape[0]))

    def step_hidden(self, x_BND, state, beam):
        encoded: _Encoded = state.encoder_state
        context = AttentionContext(
            positions_BT=jnp.broadcast_to(beam.step, x_BND.shape[:2]),
            mask_BHTS=beam.visible_BNS[:, None],
            cross_mask_BHTS=encoded.mask_B11S,
            key_positions_BS=beam.slot_positions(),
        )
        return self.decoder(x_BND, context, encoded.kv, state.caches, beam)

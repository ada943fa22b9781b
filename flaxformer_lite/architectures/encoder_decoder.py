"""The encoder-decoder Transformer (Vaswani et al. 2017, figure 1)."""

import jax
import jax.numpy as jnp

from flaxformer_lite import masks
from flaxformer_lite.architectures.base import Model, Text
from flaxformer_lite.shapes import KV
from flaxformer_lite.stack import Stack


class EncoderDecoder(Model, kw_only=True):
    """The encoder reads the source; the decoder reads what it wrote so far, and the encoder.

    Attributes:
      encoder, decoder: the stacks.
    """

    encoder: Stack
    decoder: Stack

    @property
    def max_length(self):
        tables = self.encoder.positions, self.decoder.positions
        return min((x.max_length for x in tables if hasattr(x, 'max_length')), default=None)

    def encode(self, source: Text) -> tuple[jax.Array, tuple[KV, ...]]:
        """→ the encoder's output, float32 BSD, and what each layer of the decoder reads of it."""
        memory_BSD, _ = self.encoder(
            self.embed(self.source_VD, source.tokens_BT),
            pos_BT=source.pos_BT,
            valid_BT=source.valid_BT,
            mask_BHTS=masks.segments(source.segments_BT, source.segments_BT),
        )
        return memory_BSD, self.decoder.source(memory_BSD, source.pos_BT)

    def hidden(self, source, inputs):
        _, kvs = self.encode(source)
        within = masks.segments(inputs.segments_BT, inputs.segments_BT)
        h_BTD, _ = self.decoder(
            self.embed(self.target_VD, inputs.tokens_BT),
            kvs,
            pos_BT=inputs.pos_BT,
            valid_BT=inputs.valid_BT,
            mask_BHTS=within & masks.causal(inputs.pos_BT, inputs.pos_BT),
            source_mask_BHTS=masks.segments(inputs.segments_BT, source.segments_BT),
        )
        return h_BTD

    def start(self, source_BS):
        source = Text.of(source_BS)
        context = self.encode(source)[1], source.valid_BT[:, None, None]
        return context, self.decoder.remember(None, source.valid_BT[:, :0])

    def advance(self, x_BND, context, caches, path):
        kvs, seen_B11S = context
        return self.decoder(
            x_BND,
            kvs,
            caches,
            path,
            pos_BT=jnp.broadcast_to(path.step, x_BND.shape[:2]),
            key_pos_BS=path.slot_steps(),
            valid_BT=jnp.ones(x_BND.shape[:2], bool),
            mask_BHTS=path.visible_BNS[:, None],
            source_mask_BHTS=seen_B11S,
        )

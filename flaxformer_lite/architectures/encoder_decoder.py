"""The encoder-decoder Transformer (Vaswani et al. 2017, figure 1)."""

import jax.numpy as jnp

from flaxformer_lite.architectures.base import Model
from flaxformer_lite.shapes import Places
from flaxformer_lite.stack import Stack
from flaxformer_lite.text import Text


class EncoderDecoder(Model, kw_only=True):
    """The encoder reads the source; the decoder reads what it wrote so far, and the encoder."""

    encoder: Stack
    decoder: Stack

    @property
    def max_length(self):
        tables = self.encoder.positions, self.decoder.positions
        return min(
            (x.max_length for x in tables if hasattr(x, 'max_length')), default=None
        )

    def _read(self, source: Text):
        """What each layer of the decoder reads of the encoder's output."""
        x_BSD = self.embed(self.source_VD, source.tokens_BT)
        memory_BSD, _ = self.encoder(x_BSD, source.places(source.sees(source)))
        return self.decoder.source(memory_BSD, source.pos_BT)

    def hidden(self, source, inputs):
        x_BTD = self.embed(self.target_VD, inputs.tokens_BT)
        places = inputs.places(inputs.sees_before(), inputs.sees(source))
        return self.decoder(x_BTD, places, self._read(source))[0]

    def start(self, source_BS):
        source = Text.of(source_BS)
        context = self._read(source), source.valid_BT[:, None, None]
        return context, self.decoder.remember(None, source.valid_BT[:, :0])

    def advance(self, x_BND, context, caches, path):
        kvs, seen_B11S = context
        pos_BN = jnp.broadcast_to(path.step, x_BND.shape[:2])
        places = Places(
            pos_BN, None, path.visible_BNS[:, None], seen_B11S, path.slot_steps()
        )
        return self.decoder(x_BND, places, kvs, caches, path)

"""Prediction of several tokens at once (Gloeckle et al. 2024)."""

from typing import Annotated

import jax

from flaxformer_lite.layer_scope import LayerOutputs
from flaxformer_lite.models.encoder_decoder import Transformer
from flaxformer_lite.taps import at_source
from flaxformer_lite.validation import Range


class MultiTokenTransformer(Transformer, kw_only=True):
    """Encoder-decoder that learns to predict each of the next n tokens.

    The decoder without its last layer is the trunk, and the last layer is the first of
    n heads. The others are further layers like it, each with its own parameters. All
    heads read the trunk, and share the final norm and the output matrix.

    The training loss sums over heads. Decoding runs the first head alone. Source: §2.
    Use it to ask whether a model learns more from a target if it must plan ahead.

    Attributes:
      heads: n.

    Examples:
      >>> import flaxformer_lite as fl
      >>> fl.MultiTokenTransformer(vocab_size=100, heads=2).heads
      2
    """

    own_arguments = (*Transformer.own_arguments, 'heads')
    heads: Annotated[int, Range(at_least=2, at_most=1000)] = 4

    def setup(self):
        super().setup()
        last = self.decoder_stack.template(self.decoder_stack.num_layers - 1)
        self.decoder_heads = [last.copy(name=None) for _ in range(self.heads - 1)]

    def lr_multiplier(self, path):
        if path[0].startswith('decoder_heads'):
            path = ('decoder', *path)
        return super().lr_multiplier(path)

    def decode_hidden(self, source, inputs):
        if self.is_initializing():
            return self.hidden_of_heads(source, inputs)[0]
        return super().decode_hidden(source, inputs)

    def hidden_of_heads(self, source, inputs):
        encoded = self._encode(source)
        encoder_kv = self.decoder_stack.cross_kv(encoded, source)
        x_BTD, context = self._target(source, inputs)
        outputs = LayerOutputs()
        hidden_BTD, _ = self.decoder_stack(x_BTD, context, encoder_kv, outputs=outputs)
        last_BSD = encoded[-1] if isinstance(encoded, tuple) else encoded

        def hidden_of(head) -> jax.Array:
            with at_source(source):
                kv = head.project_source(last_BSD, source.positions_BT)
            return self.decoder_stack.end_with(head, outputs, context, kv)

        return hidden_BTD, *map(hidden_of, self.decoder_heads)

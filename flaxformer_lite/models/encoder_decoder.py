"""The encoder-decoder Transformer (Vaswani et al. 2017, figure 1)."""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.kv_cache import KeyValues
from flaxformer_lite.layer_scope import LayerOutputs
from flaxformer_lite.layers.stack import Stack
from flaxformer_lite.masks import AttentionContext, TokenBatch
from flaxformer_lite.models.base import DecodeState, Model
from flaxformer_lite.validation import Choices


class _Encoded(NamedTuple):
    """Source data for decoding, without `kv` if the caches start with them."""

    kv: tuple[KeyValues, ...] | None
    mask_B11S: jax.Array
    start_B1: jax.Array


class EncoderDecoder(Model, kw_only=True):
    """Encoder-decoder Transformer.

    Attributes:
      continuous_positions: Whether target positions continue those of the source (Zhang
        et al. 2025, "RedLLM").
      merged_attention: Whether decoder self-attention also covers the source (Zhang et
        al. 2025, "T5Gemma 2"). Requires `merged` decoder blocks.
      reads: The input of cross-attention in each decoder layer. 'last' is the encoder's
        output. 'same' is the output of the encoder layer of the same number (He et al.
        2018). 'mixture' is a learned average over the encoder layers and their input
        (Bapna et al. 2018).

    Raises:
      ValueError: `reads` is 'same' and the depths differ.
    """

    has_decoder_beside_encoder = True
    own_arguments = ('reads',)
    encoder: Stack
    decoder: Stack
    continuous_positions: bool = False
    merged_attention: bool = False
    reads: Annotated[str, Choices('last', 'same', 'mixture')] = 'last'

    def __post_init__(self):
        super().__post_init__()
        depths = self.encoder.num_layers, self.decoder.num_layers
        if self.reads == 'same' and depths[0] != depths[1]:
            raise ValueError(
                'model.architecture: reads="same" pairs the layers of both stacks, but '
                f'the encoder has {depths[0]} and the decoder {depths[1]}. Set '
                f'model.decoder.num_layers={depths[0]}, or choose reads="mixture".'
            )

    def setup(self):
        super().setup()
        if self.reads == 'mixture':
            self.encoder_mixture = _EncoderMixture(self.decoder.num_layers)

    @classmethod
    def from_parts(cls, parts, vocab_size, **arguments):
        return cls(
            encoder=parts.stack('encoder'),
            decoder=parts.stack('decoder'),
            continuous_positions=parts.config.continuous_positions,
            merged_attention=parts.config.merged_attention,
            vocab_size=vocab_size,
            **parts.embeddings('decoder'),
            **arguments,
        )

    @property
    def source_d_model(self):
        return self.encoder.d_model

    def lr_multiplier(self, path):
        block = self.decoder.block
        dense = self.dense
        of_source = 'cross_attention' in path and path[-2] in ('key', 'value')
        if of_source or path[0] in ('encoder', 'source_embedding'):
            # These read vectors of the encoder's width.
            dense = self.encoder.block.self_attention.dense
        elif 'cross_attention' in path and block.cross_attention is not None:
            dense = block.cross_attention.dense
        elif path[0] == 'decoder':
            dense = block.self_attention.dense
        return dense.kernel_init.lr_multiplier(path)

    @property
    def max_length(self):
        """Smaller limit of the two stacks; continuous positions halve the decoder's."""
        limits = []
        for stack in (self.encoder, self.decoder):
            limit = stack.num_positions
            if limit is not None:
                shared = stack is self.decoder and self.continuous_positions
                limits.append(limit // 2 if shared else limit)
        return min(limits, default=None)

    def _encode(self, source: TokenBatch) -> jax.Array | tuple[jax.Array, ...]:
        """Returns what the decoder's layers read, as `Stack.cross_kv` takes it."""
        x_BSD = self.embed(self.source_VD, source.tokens_BT)
        context = AttentionContext(
            positions_BT=source.positions_BT,
            mask_BHTS=source.segment_mask(source),
            valid_BT=source.valid_BT,
        )
        if self.reads == 'last':
            return self.encoder(x_BSD, context)[0]
        found = LayerOutputs()
        encoded_BSD, _ = self.encoder(x_BSD, context, outputs=found)
        streams = found.streams[:-1]
        outputs = [self.encoder.normalize(x_BSD, context) for x_BSD in streams]
        # Not the last stream: an intervention may have changed the result.
        outputs.append(encoded_BSD)
        if self.reads == 'mixture':
            return self.encoder_mixture(outputs)
        return tuple(outputs[1:])

    def decode_hidden(self, source, inputs):
        encoder_kv = self.decoder.cross_kv(self._encode(source), source)
        x_BTD, context = self._target(source, inputs)
        hidden_BTD, _ = self.decoder(x_BTD, context, encoder_kv)
        return hidden_BTD

    def _target(self, source, inputs):
        if self.continuous_positions:
            inputs = inputs.following(source)
        x_BTD = self.embed(self.target_VD, inputs.tokens_BT)
        context = AttentionContext(
            positions_BT=inputs.positions_BT,
            mask_BHTS=inputs.causal_mask(),
            cross_mask_BHTS=inputs.segment_mask(source),
            valid_BT=inputs.valid_BT,
        )
        return x_BTD, context

    def prefill(self, source_BS):
        source = TokenBatch.from_tokens(source_BS, self.special_tokens.padding)
        encoder_kv: Any = self.decoder.cross_kv(self._encode(source), source)
        start_B1 = source.valid_BT.sum(-1, keepdims=True)
        if not self.continuous_positions:
            start_B1 = jnp.zeros_like(start_B1)
        if self.merged_attention:
            caches = self.decoder.init_cache(encoder_kv, source.valid_BT)
            encoder_kv = None
        else:
            caches = self.decoder.empty_cache(source_BS.shape[0])
        mask_B11S = source.valid_BT[:, None, None]
        return DecodeState(_Encoded(encoder_kv, mask_B11S, start_B1), caches)

    def step_hidden(self, x_BND, state, beam):
        encoded: _Encoded = state.encoder_state
        positions_B1 = encoded.start_B1 + beam.step
        context = AttentionContext(
            positions_BT=jnp.broadcast_to(positions_B1, x_BND.shape[:2]),
            mask_BHTS=beam.visible_BNS[:, None],
            cross_mask_BHTS=encoded.mask_B11S,
            key_positions_BS=encoded.start_B1 + beam.slot_positions(),
        )
        return self.decoder(x_BND, context, encoded.kv, state.caches, beam)


class _EncoderMixture(nn.Module):
    """Σ_i s_ij h_i for each decoder layer j, with s_j = softmax(w_j), w initially 0."""

    num_layers: int

    @nn.compact
    def __call__(self, outputs: list[jax.Array]) -> tuple[jax.Array, ...]:
        shape = len(outputs), self.num_layers
        logits_IJ = self.param('logits', nn.initializers.zeros, shape)
        weights_IJ = jax.nn.softmax(logits_IJ, axis=0)
        return tuple(
            sum(map(jnp.multiply, weights_I, outputs), jnp.zeros_like(outputs[0]))
            for weights_I in weights_IJ.T
        )

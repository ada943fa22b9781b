"""The encoder-decoder Transformer (Vaswani et al. 2017, figure 1)."""

import dataclasses
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.kv_cache import KeyValues
from flaxformer_lite.layer_scope import LayerOutputs
from flaxformer_lite.masks import AttentionContext, TokenBatch
from flaxformer_lite.models.base import DecodeState, LayeredModel
from flaxformer_lite.networks import CrossOverrides, DecoderOverrides
from flaxformer_lite.validation import Choices, check


class _Encoded(NamedTuple):
    """Source data for decoding, without `kv` if the caches start with them."""

    kv: tuple[KeyValues, ...] | None
    mask_B11S: jax.Array
    start_B1: jax.Array


class Transformer(LayeredModel, kw_only=True):
    """Encoder-decoder Transformer (Vaswani et al. 2017). Defaults to the base model.

    Logits are p(y_t | y_<t, x) before the softmax, float32 BTV. Use it for tasks that
    map one text to another, such as translation.

    `Model` and `LayeredNetwork` document the other fields. The most common are
    vocab_size, d_model=512, num_layers=6, num_heads=8, d_ff=2048, attention, positions,
    norm, residual, feed_forward and dropout=0.1.

    Attributes:
      decoder: Values that differ in the decoder.
      cross: Values that differ in cross-attention.
      reads: The input of cross-attention in each decoder layer. 'last' is the encoder's
        output. 'same' is the output of the encoder layer of the same number (He et al.
        2018). 'mixture' is a learned average over the encoder layers and their input
        (Bapna et al. 2018).

    Raises:
      ValueError: The fields don't fit each other; names one.

    Examples:
      >>> import flaxformer_lite as fl
      >>> model = fl.Transformer(
      ...     vocab_size=100,
      ...     d_model=32,
      ...     num_layers=1,
      ...     num_heads=4,
      ...     attention=fl.attention.Local(window=8),
      ...     norm=fl.norms.RMSNorm(),
      ...     decoder=fl.DecoderOverrides(attention=fl.attention.Softmax()),
      ... )
      >>> tokens_BT = jnp.array([[4, 5, 1]])
      >>> variables = model.init(jax.random.key(0), tokens_BT, tokens_BT)
      >>> model.apply(variables, tokens_BT, tokens_BT).shape
      (1, 3, 100)
    """

    own_arguments = ('reads',)
    roles = {'encoder': 'encoder', 'decoder': 'decoder'}
    decoder: DecoderOverrides = DecoderOverrides()
    cross: CrossOverrides = CrossOverrides()
    reads: Annotated[str, Choices('last', 'same', 'mixture')] = 'last'

    @nn.nowrap
    def _complete(self):
        check('decoder', DecoderOverrides, self.decoder)
        check('cross', CrossOverrides, self.cross)
        super()._complete()

    def __post_init__(self):
        super().__post_init__()
        encoder, decoder = self.stacks().values()
        if self.embeddings.ties_source and decoder.d_model != self.d_model:
            raise ValueError(
                f'embeddings.tie={self.embeddings.tie} shares source and target '
                f'embeddings, but d_model={self.d_model} differs from '
                f'decoder.d_model={decoder.d_model}. Set it to decoder or none.'
            )
        if self.reads == 'same' and encoder.num_layers != decoder.num_layers:
            raise ValueError(
                'reads="same" pairs the layers of both stacks, but the encoder has '
                f'{encoder.num_layers} and the decoder {decoder.num_layers}. Set '
                f'decoder.num_layers={encoder.num_layers}, or choose reads="mixture".'
            )

    def setup(self):
        super().setup()
        self.encoder_stack = self.bound_stack('encoder')
        self.decoder_stack = self.bound_stack('decoder')
        if self.reads == 'mixture':
            self.encoder_mixture = _EncoderMixture(self.decoder_stack.num_layers)

    @property
    def target_d_model(self):
        return self.stacks()['decoder'].d_model

    @nn.nowrap
    def _without_sharing(self):
        decoder = dataclasses.replace(self.decoder, share_layers=None)
        return self.clone(share_layers=None, decoder=decoder)

    def lr_multiplier(self, path):
        encoder, decoder = self.stacks().values()
        block = decoder.block
        dense = self.dense
        of_source = 'cross_attention' in path and path[-2] in ('key', 'value')
        if of_source or path[0] in ('encoder', 'source_embedding'):
            # These read vectors of the encoder's width.
            dense = encoder.block.self_attention.dense
        elif 'cross_attention' in path and block.cross_attention is not None:
            dense = block.cross_attention.dense
        elif path[0] == 'decoder':
            dense = block.self_attention.dense
        return dense.kernel_init.lr_multiplier(path)

    @property
    def max_length(self):
        """Smaller limit of the two stacks; continuous positions halve the decoder's."""
        limits = []
        for name, stack in self.stacks().items():
            limit = stack.num_positions
            if limit is not None:
                shared = name == 'decoder' and self.decoder.continuous_positions
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
            return self.encoder_stack(x_BSD, context)[0]
        found = LayerOutputs()
        encoded_BSD, _ = self.encoder_stack(x_BSD, context, outputs=found)
        streams = found.streams[:-1]
        outputs = [self.encoder_stack.normalize(x_BSD, context) for x_BSD in streams]
        # Not the last stream: an intervention may have changed the result.
        outputs.append(encoded_BSD)
        if self.reads == 'mixture':
            return self.encoder_mixture(outputs)
        return tuple(outputs[1:])

    def decode_hidden(self, source, inputs):
        encoder_kv = self.decoder_stack.cross_kv(self._encode(source), source)
        x_BTD, context = self._target(source, inputs)
        hidden_BTD, _ = self.decoder_stack(x_BTD, context, encoder_kv)
        return hidden_BTD

    def _target(self, source, inputs):
        if self.decoder.continuous_positions:
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
        encoder_kv: Any = self.decoder_stack.cross_kv(self._encode(source), source)
        start_B1 = source.valid_BT.sum(-1, keepdims=True)
        if not self.decoder.continuous_positions:
            start_B1 = jnp.zeros_like(start_B1)
        if self.decoder.merged_attention:
            caches = self.decoder_stack.init_cache(encoder_kv, source.valid_BT)
            encoder_kv = None
        else:
            caches = self.decoder_stack.empty_cache(source_BS.shape[0])
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
        return self.decoder_stack(x_BND, context, encoded.kv, state.caches, beam)


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

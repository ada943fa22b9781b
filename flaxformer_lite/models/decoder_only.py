"""Decoder-only language model that continues the source (Radford et al. 2018)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from flaxformer_lite.masks import AttentionContext, TokenBatch
from flaxformer_lite.models.base import DecodeState, LayeredModel


class _Prompt(NamedTuple):
    valid_BS: jax.Array
    positions_BS: jax.Array


class DecoderOnly(LayeredModel, kw_only=True):
    """Decoder-only model: source and target form one text; the loss is the target's.

    `Model` and `LayeredNetwork` document the fields. Use it for language models, and
    to compare with an encoder-decoder (Radford et al. 2018).

    Examples:
      >>> import flaxformer_lite as fl
      >>> fl.DecoderOnly(vocab_size=100, positions=fl.positions.Learned()).max_length
      512
    """

    roles = {'decoder': 'decoder_only'}

    def setup(self):
        super().setup()
        self.decoder_stack = self.bound_stack('decoder')

    @property
    def max_length(self):
        """Half of the decoder's positions, because source and target share a row."""
        limit = self.stacks()['decoder'].num_positions
        if limit is None:
            return None
        return limit // 2

    def mask(self, tokens: TokenBatch, source_length: int) -> jax.Array:
        """Returns the self-attention mask, B1TT, of the source and target tokens."""
        return tokens.causal_mask()

    def _context(self, tokens: TokenBatch, source_length: int) -> AttentionContext:
        return AttentionContext(
            positions_BT=tokens.positions_BT,
            mask_BHTS=self.mask(tokens, source_length),
            valid_BT=tokens.valid_BT,
        )

    def decode_hidden(self, source, inputs):
        inputs = inputs.following(source)
        source_length = source.tokens_BT.shape[1]
        x_BSD = self.embed(self.source_VD, source.tokens_BT)
        x_BTD = self.embed(self.target_VD, inputs.tokens_BT)
        # Keeps the target's `tokens_BT`, because layers read source tokens only as
        # embeddings.
        both = inputs._replace(
            segments_BT=jnp.concatenate([source.segments_BT, inputs.segments_BT], 1),
            positions_BT=jnp.concatenate([source.positions_BT, inputs.positions_BT], 1),
        )
        context = self._context(both, source_length)
        hidden_BLD, _ = self.decoder_stack(jnp.concatenate([x_BSD, x_BTD], 1), context)
        return hidden_BLD[:, source_length:]

    def prefill(self, source_BS):
        source = TokenBatch.from_tokens(source_BS, self.special_tokens.padding)
        x_BSD = self.embed(self.source_VD, source_BS)
        context = self._context(source, source_BS.shape[1])
        _, prefix = self.decoder_stack(x_BSD, context)
        prompt = _Prompt(source.valid_BT, source.positions_BT)
        cache = self.decoder_stack.init_cache(prefix, source.valid_BT)
        return DecodeState(prompt, cache)

    def step_hidden(self, x_BND, state, beam):
        prompt: _Prompt = state.encoder_state
        batch, hypotheses = x_BND.shape[:2]
        length_B1 = prompt.valid_BS.sum(-1, keepdims=True)
        prompt_visible_BNS = jnp.broadcast_to(
            prompt.valid_BS[:, None], (batch, hypotheses, prompt.valid_BS.shape[1])
        )
        visible_BNS = jnp.concatenate([prompt_visible_BNS, beam.visible_BNS], -1)
        slot_positions_BS = length_B1 + beam.slot_positions()
        context = AttentionContext(
            positions_BT=jnp.broadcast_to(length_B1 + beam.step, (batch, hypotheses)),
            mask_BHTS=visible_BNS[:, None],
            key_positions_BS=jnp.concatenate(
                [prompt.positions_BS, slot_positions_BS], 1
            ),
        )
        return self.decoder_stack(x_BND, context, None, state.caches, beam)

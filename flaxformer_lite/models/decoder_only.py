"""A decoder alone: a language model that continues the source (Radford et al. 2018)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from flaxformer_lite.layers.stack import Stack
from flaxformer_lite.masks import AttentionContext, TokenBatch
from flaxformer_lite.models.base import DecodeState, Model


class _Prompt(NamedTuple):
    """What decoding knows of the source, whose keys and values are in the caches.

    Attributes:
      valid_BS: bool, False for padding.
      positions_BS: int32.
    """

    valid_BS: jax.Array
    positions_BS: jax.Array


class DecoderOnly(Model, kw_only=True):
    """The target follows the source as if both were one text; the loss is the target's.

    With sources that are all padding it is a plain language model.

    Attributes:
      decoder: a causal stack.
    """

    decoder: Stack

    @classmethod
    def from_parts(cls, parts, vocab_size, **arguments):
        return cls(
            decoder=parts.stack('decoder_only'),
            vocab_size=vocab_size,
            **parts.embeddings('decoder_only'),
            **arguments,
        )

    @property
    def max_length(self):
        """Half of a table of learned positions: source and target share a row."""
        limit = getattr(self.decoder.positions, 'max_length', None)
        if limit is None:
            return None
        return limit // 2

    def decode_hidden(self, source, inputs):
        inputs = _after_source(source, inputs)
        x_BSD = self.embed(self.source_VD, source.tokens_BT)
        x_BTD = self.embed(self.target_VD, inputs.tokens_BT)
        both = TokenBatch(
            *(jnp.concatenate(x, 1) for x in zip(source, inputs, strict=True))
        )
        context = _causal_context(both)
        hidden_BLD, _ = self.decoder(jnp.concatenate([x_BSD, x_BTD], 1), context)
        return hidden_BLD[:, source.tokens_BT.shape[1] :]

    def prefill(self, source_BS):
        source = TokenBatch.from_tokens(source_BS, self.special_tokens.padding)
        x_BSD = self.embed(self.source_VD, source_BS)
        _, prefix = self.decoder(x_BSD, _causal_context(source))
        prompt = _Prompt(source.valid_BT, source.positions_BT)
        return DecodeState(prompt, self.decoder.init_cache(prefix, source.valid_BT))

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
        return self.decoder(x_BND, context, None, state.caches, beam)


def _after_source(source: TokenBatch, inputs: TokenBatch) -> TokenBatch:
    """The inputs with positions that go on where those of their source end."""
    source_length_BT = inputs.segment_mask(source)[:, 0].sum(-1)
    positions_BT = inputs.positions_BT + source_length_BT
    return inputs._replace(positions_BT=jnp.where(inputs.valid_BT, positions_BT, 0))


def _causal_context(tokens: TokenBatch) -> AttentionContext:
    return AttentionContext(
        positions_BT=tokens.positions_BT,
        mask_BHTS=tokens.causal_mask(),
        valid_BT=tokens.valid_BT,
    )

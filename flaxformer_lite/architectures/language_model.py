"""One stack alone: a causal language model that goes on from the source (Radford et al. 2018)."""

import jax
import jax.numpy as jnp

from flaxformer_lite import masks
from flaxformer_lite.architectures.base import Model, Text
from flaxformer_lite.stack import Stack


class LanguageModel(Model, kw_only=True):
    """The target follows the source as if both were one text; the loss is of the target alone.

    Where a source holds nothing but padding it is a language model and nothing else.

    Attributes:
      stack: without cross-attention.
    """

    idle = (
        *('decoder_attention', 'decoder_positions'),
        *('cross_attention', 'cross_positions'),
    )
    stack: Stack

    @property
    def max_length(self):
        """Source and target stand in one row, and may have half of it each."""
        most = getattr(self.stack.positions, 'max_length', None)
        return None if most is None else most // 2

    def _read(self, x_BTD: jax.Array, text: Text) -> tuple:
        within = masks.segments(text.segments_BT, text.segments_BT)
        mask_BHTS = within & masks.causal(text.pos_BT, text.pos_BT)
        return self.stack(x_BTD, pos_BT=text.pos_BT, valid_BT=text.valid_BT, mask_BHTS=mask_BHTS)

    def hidden(self, source, inputs):
        # A target's places begin after its source's: as many as its segment has there.
        of_source = masks.segments(inputs.segments_BT, source.segments_BT)[:, 0].sum(-1)
        inputs = inputs._replace(pos_BT=jnp.where(inputs.valid_BT, inputs.pos_BT + of_source, 0))
        sides = (self.source_VD, source), (self.target_VD, inputs)
        x_BTD = jnp.concatenate([self.embed(table, text.tokens_BT) for table, text in sides], 1)
        both = Text(*(jnp.concatenate(x, 1) for x in zip(source, inputs, strict=True)))
        h_BTD, _ = self._read(x_BTD, both)
        return h_BTD[:, source.tokens_BT.shape[1] :]

    def start(self, source_BS):
        source = Text.of(source_BS)
        _, kvs = self._read(self.embed(self.source_VD, source_BS), source)
        return (source.valid_BT, source.pos_BT), self.stack.remember(kvs, source.valid_BT)

    def advance(self, x_BND, context, caches, path):
        valid_BS, pos_BS = context
        words_B1 = valid_BS.sum(-1, keepdims=True)
        valid_BNS = jnp.broadcast_to(valid_BS[:, None], (*x_BND.shape[:2], valid_BS.shape[1]))
        return self.stack(
            x_BND,
            None,
            caches,
            path,
            pos_BT=jnp.broadcast_to(words_B1 + path.step, x_BND.shape[:2]),
            key_pos_BS=jnp.concatenate([pos_BS, words_B1 + path.slot_steps()], 1),
            valid_BT=jnp.ones(x_BND.shape[:2], bool),
            mask_BHTS=jnp.concatenate([valid_BNS, path.visible_BNS], -1)[:, None],
        )

"""One stack alone: a causal language model that goes on from the source (Radford et al. 2018)."""

import jax.numpy as jnp

from flaxformer_lite.architectures.base import Model
from flaxformer_lite.shapes import Places
from flaxformer_lite.stack import Stack
from flaxformer_lite.text import Text


class LanguageModel(Model, kw_only=True):
    """The target follows the source as if both were one text; the loss is of the target alone.

    Where a source holds nothing but padding it is a language model and nothing else.
    """

    stack: Stack

    @property
    def max_length(self):
        """Source and target stand in one row, and may have half of it each."""
        most = getattr(self.stack.positions, 'max_length', None)
        return None if most is None else most // 2

    def hidden(self, source, inputs):
        # A target's places begin after its source's: as many as its segment has there.
        of_source_BT = inputs.sees(source)[:, 0].sum(-1)
        pos_BT = jnp.where(inputs.valid_BT, inputs.pos_BT + of_source_BT, 0)
        sides = (
            (self.source_VD, source),
            (self.target_VD, inputs._replace(pos_BT=pos_BT)),
        )
        x_BTD = jnp.concatenate(
            [self.embed(table, text.tokens_BT) for table, text in sides], 1
        )
        both = Text(
            *(jnp.concatenate(x, 1) for x in zip(sides[0][1], sides[1][1], strict=True))
        )
        return self.stack(x_BTD, both.places(both.sees_before()))[0][
            :, source.tokens_BT.shape[1] :
        ]

    def start(self, source_BS):
        source = Text.of(source_BS)
        places = source.places(source.sees_before())
        _, kvs = self.stack(self.embed(self.source_VD, source_BS), places)
        return (source.valid_BT, source.pos_BT), self.stack.remember(
            kvs, source.valid_BT
        )

    def advance(self, x_BND, context, caches, path):
        valid_BS, pos_BS = context
        words_B1 = valid_BS.sum(-1, keepdims=True)
        pos_BN = jnp.broadcast_to(words_B1 + path.step, x_BND.shape[:2])
        valid_BNS = jnp.broadcast_to(
            valid_BS[:, None], (*pos_BN.shape, valid_BS.shape[1])
        )
        mask_BHNS = jnp.concatenate([valid_BNS, path.visible_BNS], -1)[:, None]
        key_pos_BS = jnp.concatenate([pos_BS, words_B1 + path.slot_steps()], 1)
        places = Places(pos_BN, None, mask_BHNS, None, key_pos_BS)
        return self.stack(x_BND, places, None, caches, path)

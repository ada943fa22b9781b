"""Parallel sublayers (Wang and Komatsuzaki 2021, "GPT-J")."""

from flax import linen as nn

from flaxformer_lite.layers.blocks.base import Block
from flaxformer_lite.taps import tap


class Parallel(Block):
    """Block whose sublayers all read the same h; their sum joins the stream once.

    In a decoder, cross-attention is one of them. Large models use it for speed: their
    matrix products can run together (Chowdhery et al. 2022, §2).

    Examples:
      >>> import flaxformer_lite as fl
      >>> model = fl.DecoderOnly(vocab_size=100, block=fl.blocks.Parallel())
    """

    @nn.compact
    def __call__(self, x_BTD, context, encoder_kv=None, cache=None, beam=None):
        residual_1 = self.residual.copy(name='residual_1')
        h_BTD = residual_1.before(x_BTD)
        merged_kv = encoder_kv if self.merged else None
        y_BTD, cache = self.attend_to_self(h_BTD, context, cache, beam, merged_kv)
        y_BTD = tap(self, 'attn_out', y_BTD)
        if self.cross_attention is not None:
            of_source_BTD = self.attend_to_source(h_BTD, context, encoder_kv)
            y_BTD += tap(self, 'cross_attn_out', of_source_BTD)
        y_BTD += tap(self, 'mlp_out', self.feed_forward(h_BTD))
        x_BTD = residual_1.after(x_BTD, y_BTD)
        return x_BTD, cache

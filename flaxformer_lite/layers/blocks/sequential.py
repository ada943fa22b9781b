"""Sequential sublayers (paper §3.1, figure 1)."""

from flax import linen as nn

from flaxformer_lite.layers.blocks.base import Block


class SequentialBlock(Block):
    """Self-attention, cross-attention in a decoder, then the feed-forward network."""

    @nn.compact
    def __call__(self, x_BTD, context, encoder_kv=None, cache=None, beam=None):
        residual = self.residual.copy(name='residual_1')
        h_BTD = residual.before(x_BTD)
        merged_kv = encoder_kv if self.merged else None
        h_BTD, cache = self.attend_to_self(h_BTD, context, cache, beam, merged_kv)
        x_BTD = residual.after(x_BTD, h_BTD)

        residual = self.residual.copy(name='residual_2')
        if self.cross_attention is not None:
            h_BTD = residual.before(x_BTD)
            h_BTD = self.attend_to_source(h_BTD, context, encoder_kv)
            x_BTD = residual.after(x_BTD, h_BTD)
            residual = self.residual.copy(name='residual_3')

        h_BTD = residual.before(x_BTD)
        x_BTD = residual.after(x_BTD, self.feed_forward(h_BTD))
        return x_BTD, cache

    @nn.nowrap
    def streams_between(self):
        if self.cross_attention is None:
            return ('resid_mid',)
        return 'resid_mid', 'resid_mid_cross'

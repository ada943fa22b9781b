"""Sequential sublayers (paper §3.1, figure 1)."""

from flax import linen as nn

from flaxformer_lite.layers.blocks.base import Block
from flaxformer_lite.taps import tap


class Sequential(Block):
    """Self-attention, cross-attention in a decoder, then the feed-forward network."""

    @nn.compact
    def __call__(self, x_BTD, context, encoder_kv=None, cache=None, beam=None):
        residual = self.residual.copy(name='residual_1')
        h_BTD = residual.before(x_BTD)
        merged_kv = encoder_kv if self.merged else None
        h_BTD, cache = self.attend_to_self(h_BTD, context, cache, beam, merged_kv)
        h_BTD = tap(self, 'attn_out', h_BTD)
        x_BTD = tap(self, 'resid_mid', residual.after(x_BTD, h_BTD))

        residual = self.residual.copy(name='residual_2')
        if self.cross_attention is not None:
            h_BTD = residual.before(x_BTD)
            h_BTD = self.attend_to_source(h_BTD, context, encoder_kv)
            h_BTD = tap(self, 'cross_attn_out', h_BTD)
            x_BTD = tap(self, 'resid_mid_cross', residual.after(x_BTD, h_BTD))
            residual = self.residual.copy(name='residual_3')

        h_BTD = residual.before(x_BTD)
        h_BTD = tap(self, 'mlp_out', self.feed_forward(h_BTD))
        return residual.after(x_BTD, h_BTD), cache

"""The encoder (paper §3.1; Figure 1, left)."""

import jax
from flax import linen as nn

from flaxformer_lite.dropout import Skip


class Block(nn.Module):
    """Self-attention, then the feed-forward network, each joined by the residual.

    Attributes:
      attention: a `MultiHead`.
      feed_forward: a module of `feed_forward/`.
      residual: a module of `residual/`; each sublayer has its own copy.
      parallel: both read the same x, and their sum is joined once (Wang and Komatsuzaki 2021).
    """

    attention: nn.Module
    feed_forward: nn.Module
    residual: nn.Module
    parallel: bool = False

    @nn.compact
    def __call__(
        self,
        x_BTD: jax.Array,
        *,
        pos_BT: jax.Array,
        valid_BT: jax.Array,
        mask_BHTS: jax.Array,
        bias_BHTS: jax.Array | None = None,
    ) -> jax.Array:
        res_1 = self.residual.copy(name='residual_1')
        res_2 = self.residual.copy(name='residual_2')

        h_BTD = res_1.before(x_BTD, valid_BT)
        kv = self.attention.keys_values(h_BTD, pos_BT)
        y_BTD = self.attention(h_BTD, kv, pos_BT=pos_BT, mask_BHTS=mask_BHTS, bias_BHTS=bias_BHTS)
        if self.parallel:
            return res_1.after(x_BTD, y_BTD + self.feed_forward(h_BTD, valid_BT), valid_BT)
        x_BTD = res_1.after(x_BTD, y_BTD, valid_BT)
        y_BTD = self.feed_forward(res_2.before(x_BTD, valid_BT), valid_BT)
        return res_2.after(x_BTD, y_BTD, valid_BT)


class Encoder(nn.Module):
    """A stack of equal blocks with weights of their own.

    Attributes:
      block: the pattern of every layer.
      num_layers: N.
      positions: a module of `positions/`; its `embed` and `bias` are used here.
      dropout: of the sum of embeddings and positions (§5.4).
      skip: what leaves out whole layers.
    """

    block: Block
    num_layers: int
    positions: nn.Module
    dropout: nn.Module
    skip: nn.Module = Skip()

    @nn.compact
    def __call__(
        self, x_BTD: jax.Array, *, pos_BT: jax.Array, valid_BT: jax.Array, mask_BHTS: jax.Array
    ) -> jax.Array:
        """Embedded tokens to the encoder's output, float32 BTD."""
        x_BTD = self.dropout(self.positions.embed(x_BTD, pos_BT))
        places = dict(pos_BT=pos_BT, valid_BT=valid_BT, mask_BHTS=mask_BHTS)
        bias_BHTS = self.positions.bias(pos_BT, pos_BT)
        for i in range(self.num_layers):
            # A copy: one template called N times would share its weights.
            layer = self.block.copy(name=f'layer_{i}')
            leave = self.skip.copy(name=f'leave_{i}')
            x_BTD = leave(x_BTD, layer(x_BTD, **places, bias_BHTS=bias_BHTS))
        return self.block.residual.copy(name='final').finish(x_BTD, valid_BT)

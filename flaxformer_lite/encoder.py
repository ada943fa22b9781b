"""The encoder (paper §3.1; Figure 1, left)."""

import jax
from flax import linen as nn


class Block(nn.Module):
    """Self-attention, then the feed-forward network, each joined by the residual.

    Attributes:
      attention: a `MultiHead`.
      feed_forward: a module of `feed_forward/`.
      residual: a module of `residual/`; each sublayer has its own copy.
    """

    attention: nn.Module
    feed_forward: nn.Module
    residual: nn.Module

    @nn.compact
    def __call__(
        self,
        x_BTD: jax.Array,
        *,
        pos_BT: jax.Array,
        mask_BHTS: jax.Array,
        bias_BHTS: jax.Array | None = None,
    ) -> jax.Array:
        res_1 = self.residual.copy(name='residual_1')
        res_2 = self.residual.copy(name='residual_2')

        y_BTD = res_1.before(x_BTD)
        kv = self.attention.keys_values(y_BTD, pos_BT)
        y_BTD = self.attention(y_BTD, kv, pos_BT=pos_BT, mask_BHTS=mask_BHTS, bias_BHTS=bias_BHTS)
        x_BTD = res_1.after(x_BTD, y_BTD)
        y_BTD = self.feed_forward(res_2.before(x_BTD))
        return res_2.after(x_BTD, y_BTD)


class Encoder(nn.Module):
    """A stack of equal blocks with weights of their own.

    Attributes:
      block: the pattern of every layer.
      num_layers: N.
      positions: a module of `positions/`; its `embed` and `bias` are used here.
      dropout: of the sum of embeddings and positions (§5.4).
    """

    block: Block
    num_layers: int
    positions: nn.Module
    dropout: nn.Module

    @nn.compact
    def __call__(self, x_BTD: jax.Array, *, pos_BT: jax.Array, mask_BHTS: jax.Array) -> jax.Array:
        """Embedded tokens to the encoder's output, float32 BTD."""
        x_BTD = self.dropout(self.positions.embed(x_BTD, pos_BT))
        bias_BHTS = self.positions.bias(pos_BT, pos_BT)
        for i in range(self.num_layers):
            # A copy: one template called N times would share its weights.
            layer = self.block.copy(name=f'layer_{i}')
            x_BTD = layer(x_BTD, pos_BT=pos_BT, mask_BHTS=mask_BHTS, bias_BHTS=bias_BHTS)
        return self.block.residual.copy(name='final').finish(x_BTD)

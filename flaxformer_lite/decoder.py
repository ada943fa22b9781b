"""The decoder (paper §3.1; Figure 1, right), for whole targets and for one token at a time."""

import jax
from flax import linen as nn

from flaxformer_lite.dropout import Skip
from flaxformer_lite.shapes import KV, Path


class Block(nn.Module):
    """Masked self-attention, attention over the encoder's output, then the feed-forward network.

    Attributes:
      attention: a `MultiHead` over the target.
      cross_attention: a `MultiHead` over the source.
      feed_forward: a module of `feed_forward/`.
      residual: a module of `residual/`; each sublayer has its own copy.
      parallel: all three read the same x, and their sum is joined once.
    """

    attention: nn.Module
    cross_attention: nn.Module
    feed_forward: nn.Module
    residual: nn.Module
    parallel: bool = False

    def setup(self):
        self.residual_1 = self.residual.copy(name=None)
        self.residual_2 = self.residual.copy(name=None)
        self.residual_3 = self.residual.copy(name=None)

    def __call__(
        self,
        x_BTD: jax.Array,
        source: KV,
        cache: KV | None = None,
        path: Path | None = None,
        *,
        pos_BT: jax.Array,
        valid_BT: jax.Array,
        mask_BHTS: jax.Array,
        source_mask_BHTS: jax.Array,
        bias_BHTS: jax.Array | None = None,
    ) -> tuple[jax.Array, KV]:
        """→ the block's output, and the keys and values it attended to: the new cache."""

        def ask_source(h_BTD: jax.Array) -> jax.Array:
            return self.cross_attention(h_BTD, source, pos_BT=pos_BT, mask_BHTS=source_mask_BHTS)

        h_BTD = self.residual_1.before(x_BTD, valid_BT)
        kv = self.attention.keys_values(h_BTD, pos_BT)
        if cache is not None:
            kv = cache.insert(kv, path)
        y_BTD = self.attention(h_BTD, kv, pos_BT=pos_BT, mask_BHTS=mask_BHTS, bias_BHTS=bias_BHTS)
        if self.parallel:
            y_BTD += ask_source(h_BTD) + self.feed_forward(h_BTD, valid_BT)
            return self.residual_1.after(x_BTD, y_BTD, valid_BT), kv
        x_BTD = self.residual_1.after(x_BTD, y_BTD, valid_BT)
        y_BTD = ask_source(self.residual_2.before(x_BTD, valid_BT))
        x_BTD = self.residual_2.after(x_BTD, y_BTD, valid_BT)
        y_BTD = self.feed_forward(self.residual_3.before(x_BTD, valid_BT), valid_BT)
        return self.residual_3.after(x_BTD, y_BTD, valid_BT), kv


class Decoder(nn.Module):
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

    def setup(self):
        # Copies: one template called N times would share its weights.
        self.layer = [self.block.copy(name=None) for _ in range(self.num_layers)]
        self.leave = [self.skip.copy(name=None) for _ in range(self.num_layers)]
        self.final = self.block.residual.copy(name=None)

    def source(self, memory_BSD: jax.Array, pos_BS: jax.Array) -> tuple[KV, ...]:
        """What each layer's cross-attention reads of the encoder's output, projected once."""
        return tuple(x.cross_attention.keys_values(memory_BSD, pos_BS) for x in self.layer)

    def empty(self, batch: int) -> tuple[KV, ...]:
        """A cache for each layer, without slots."""
        return tuple(x.attention.empty(batch) for x in self.layer)

    def __call__(
        self,
        x_BTD: jax.Array,
        source: tuple[KV, ...],
        caches: tuple[KV, ...] | None = None,
        path: Path | None = None,
        *,
        pos_BT: jax.Array,
        key_pos_BS: jax.Array,
        valid_BT: jax.Array,
        mask_BHTS: jax.Array,
        source_mask_BHTS: jax.Array,
    ) -> tuple[jax.Array, tuple[KV, ...]]:
        """Embedded tokens to the decoder's output, float32 BTD, and the layers' new caches.

        Without caches the tokens attend to each other; with them, the tokens are the next of each
        row's hypotheses (T = N), are written to the path's slots and attend to the cache.
        """
        x_BTD = self.dropout(self.positions.embed(x_BTD, pos_BT))
        places = dict(
            pos_BT=pos_BT,
            valid_BT=valid_BT,
            mask_BHTS=mask_BHTS,
            source_mask_BHTS=source_mask_BHTS,
            bias_BHTS=self.positions.bias(pos_BT, key_pos_BS),
        )
        new = []
        caches = caches or (None,) * self.num_layers
        for i, (kv, cache) in enumerate(zip(source, caches, strict=True)):
            y_BTD, cache = self.layer[i](x_BTD, kv, cache, path, **places)
            x_BTD = self.leave[i](x_BTD, y_BTD)
            new.append(cache)
        return self.final.finish(x_BTD, valid_BT), tuple(new)

"""A stack of equal blocks: the encoder, the decoder (paper §3.1, Figure 1), or a decoder alone."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.dropout import Skip
from flaxformer_lite.shapes import KV, Path, Places, Remembered


# Traced once for all layers of a stack, whose arrays alone differ: the time that it takes to build,
# describe or compile a model hardly grows with its depth.
@nn.jit
class Block(nn.Module):
    """Self-attention, attention over a source if there is one, then the feed-forward network.

    Both attentions are a `MultiHead`; each sublayer has its own copy of the residual. If they are
    `parallel`, all read the same x, and their sum is joined once (Wang and Komatsuzaki 2021).
    """

    attention: nn.Module
    feed_forward: nn.Module
    residual: nn.Module
    cross_attention: nn.Module | None = None
    parallel: bool = False

    @nn.compact
    def __call__(
        self,
        x_BTD: jax.Array,
        places: Places,
        source: KV | None = None,
        cache=None,
        path=None,
    ) -> tuple[jax.Array, Remembered]:
        """→ the block's output, and its new cache: without one, the tokens' keys and values."""
        valid_BT = places.valid_BT
        others = [lambda h_BTD: self.feed_forward(h_BTD, valid_BT)]
        if self.cross_attention is not None:
            others.insert(
                0, lambda h_BTD: self.cross_attention(h_BTD, source, places.of_source())
            )
        residuals = [
            self.residual.copy(name=f'residual_{i + 1}') for i in range(1 + len(others))
        ]

        h_BTD = residuals[0].before(x_BTD, valid_BT)
        kv = self.attention.keys_values(h_BTD, places.pos_BT)
        cache, kv = (kv, kv) if cache is None else cache.insert(kv, path)
        y_BTD = self.attention(h_BTD, kv, places)
        if self.parallel:
            y_BTD += sum(sublayer(h_BTD) for sublayer in others)
            return residuals[0].after(x_BTD, y_BTD, valid_BT), cache
        x_BTD = residuals[0].after(x_BTD, y_BTD, valid_BT)
        for residual, sublayer in zip(residuals[1:], others, strict=True):
            y_BTD = sublayer(residual.before(x_BTD, valid_BT))
            x_BTD = residual.after(x_BTD, y_BTD, valid_BT)
        return x_BTD, cache


class Stack(nn.Module):
    """Equal blocks with weights of their own.

    Attributes:
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
        return tuple(
            x.cross_attention.keys_values(memory_BSD, pos_BS) for x in self.layer
        )

    def remember(
        self, kvs: tuple[KV, ...] | None, valid_BS: jax.Array
    ) -> tuple[Remembered, ...]:
        """A cache for each layer that begins with what all hypotheses share; None for nothing."""
        if kvs is None:
            x_BSD = jnp.zeros((*valid_BS.shape, self.layer[0].attention.d_model))
            kvs = tuple(
                x.attention.keys_values(x_BSD, valid_BS * 0) for x in self.layer
            )
        layers = zip(self.layer, kvs, strict=True)
        return tuple(
            layer.attention.attend.remember(kv, valid_BS) for layer, kv in layers
        )

    def __call__(
        self,
        x_BTD: jax.Array,
        places: Places,
        source=None,
        caches=None,
        path: Path | None = None,
    ) -> tuple[jax.Array, tuple[Remembered, ...]]:
        """Embedded tokens to the stack's output, float32 BTD, and the layers' new caches.

        `source` and `caches` are what the methods above made. Without caches the tokens attend to
        each other; with them, the tokens are the next of each row's hypotheses (T = N), are written
        to the path's slots and attend to the cache.
        """
        pos_BT, valid_BT, *_, key_pos_BS, _ = places
        x_BTD = self.dropout(self.positions.embed(x_BTD, pos_BT))
        bias_BHTS = self.positions.bias(
            pos_BT, pos_BT if key_pos_BS is None else key_pos_BS
        )
        places = places._replace(bias_BHTS=bias_BHTS)
        self._record(places, x_BTD)
        new, nothing = [], (None,) * self.num_layers
        layers = zip(
            self.layer, self.leave, source or nothing, caches or nothing, strict=True
        )
        for layer, leave, kv, cache in layers:
            y_BTD, cache = layer(x_BTD, places, kv, cache, path)
            x_BTD = leave(x_BTD, y_BTD)
            self._record(places, x_BTD)
            new.append(cache)
        return self.final.finish(x_BTD, valid_BT), tuple(new)

    def _record(self, places, x_BTD):
        """For `introspection`: where the tokens stand, and how long their vectors have become."""
        if self.is_mutable_collection('intermediates'):
            self.put_variable('intermediates', 'pos', places.pos_BT)
            self.put_variable('intermediates', 'valid', places.valid_BT)
            self.sow('intermediates', 'norms', jnp.linalg.norm(x_BTD, axis=-1))

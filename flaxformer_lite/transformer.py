"""The encoder-decoder Transformer (paper §3): tokens to logits, whole or one token at a time."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from jax.typing import DTypeLike

from flaxformer_lite import masks
from flaxformer_lite.decoder import Decoder
from flaxformer_lite.dense import product
from flaxformer_lite.encoder import Encoder
from flaxformer_lite.init.base import Init
from flaxformer_lite.init.xavier import Xavier
from flaxformer_lite.shapes import KV, Path

TIES = ('three', 'two', 'none')


class Context(struct.PyTreeNode):
    """What decoding reads of a source sentence; every hypothesis of the sentence shares it.

    Attributes:
      source: each layer's keys and values of the encoder's output.
      segments_BS: int32, 0 where the source is padding.
    """

    source: tuple[KV, ...]
    segments_BS: jax.Array


class Transformer(nn.Module):
    """Figure 1. Token 0 is padding; positions and segments need giving only for packed rows.

    Attributes:
      encoder, decoder: the stacks.
      d_model: width of the embeddings.
      source_vocab, target_vocab: numbers of tokens; equal where the matrix is shared three ways.
      tie: which share one matrix (§3.4): 'three' (source, target, pre-softmax), 'two' (target and
        pre-softmax) or 'none'.
      scale_embeddings: times √d_model (§3.4).
      dtype: of the operands; parameters, the residual stream and logits are float32.
      initial: what embeddings are at first.

    Raises:
      ValueError: an unknown `tie`, or vocabularies that cannot share.
    """

    encoder: Encoder
    decoder: Decoder
    d_model: int
    source_vocab: int
    target_vocab: int
    tie: str = 'three'
    scale_embeddings: bool = True
    dtype: DTypeLike = jnp.float32
    initial: Init = Xavier()

    def setup(self):
        if self.tie not in TIES:
            raise ValueError(f'tie must be one of {", ".join(TIES)}, not {self.tie!r}')
        if self.tie == 'three' and self.source_vocab != self.target_vocab:
            raise ValueError(
                f'tie=three needs one joint vocabulary, not {self.source_vocab} and '
                f'{self.target_vocab} tokens: use tie=two'
            )

        def matrix(name: str, size: int) -> jax.Array:
            return self.param(name, self.initial.embedding, size, self.d_model)

        self.target_VD = matrix('embedding', self.target_vocab)
        three, none = self.tie == 'three', self.tie == 'none'
        self.source_VD = self.target_VD if three else matrix('source_embedding', self.source_vocab)
        self.output_VD = matrix('output', self.target_vocab) if none else self.target_VD

    def _embed(self, table_VD: jax.Array, tokens_BT: jax.Array) -> jax.Array:
        x_BTD = jnp.take(table_VD, tokens_BT, axis=0)
        return x_BTD * self.d_model**0.5 if self.scale_embeddings else x_BTD

    def encode(
        self,
        source_BS: jax.Array,
        segments_BS: jax.Array | None = None,
        pos_BS: jax.Array | None = None,
    ) -> tuple[jax.Array, tuple[KV, ...], jax.Array]:
        """→ the encoder's output (float32 BSD), what each layer reads of it, and its segments."""
        segments_BS = (source_BS != 0).astype(jnp.int32) if segments_BS is None else segments_BS
        pos_BS = masks.positions(source_BS) if pos_BS is None else pos_BS
        memory_BSD = self.encoder(
            self._embed(self.source_VD, source_BS),
            pos_BT=pos_BS,
            valid_BT=segments_BS != 0,
            mask_BHTS=masks.segments(segments_BS, segments_BS),
        )
        return memory_BSD, self.decoder.source(memory_BSD, pos_BS), segments_BS

    def outputs(
        self,
        source_BS: jax.Array,
        inputs_BT: jax.Array,
        source_segments_BS: jax.Array | None = None,
        target_segments_BT: jax.Array | None = None,
        source_pos_BS: jax.Array | None = None,
        target_pos_BT: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """All but the last product: the decoder's output (BTD) and the output matrix (VD)."""
        _, source, source_segments_BS = self.encode(source_BS, source_segments_BS, source_pos_BS)
        pos_BT = masks.positions(inputs_BT) if target_pos_BT is None else target_pos_BT
        if target_segments_BT is None:
            target_segments_BT = (inputs_BT != 0).astype(jnp.int32)
        within = masks.segments(target_segments_BT, target_segments_BT)
        h_BTD, _ = self.decoder(
            self._embed(self.target_VD, inputs_BT),
            source,
            pos_BT=pos_BT,
            key_pos_BS=pos_BT,
            valid_BT=target_segments_BT != 0,
            mask_BHTS=within & masks.causal(pos_BT, pos_BT),
            source_mask_BHTS=masks.segments(target_segments_BT, source_segments_BS),
        )
        return h_BTD, self.output_VD

    def __call__(self, source_BS: jax.Array, inputs_BT: jax.Array, **packing) -> jax.Array:
        """Teacher-forced logits, float32 BTV: row t predicts the token after `inputs_BT[:, t]`.

        Args:
          source_BS: int32 tokens, 0 = padding.
          inputs_BT: int32 tokens, the target shifted right behind a start token.
          **packing: segments and positions of packed rows, as `outputs` names them.
        """
        return self._logits(self.outputs(source_BS, inputs_BT, **packing)[0])

    def _logits(self, h_BTD: jax.Array) -> jax.Array:
        rows_ND = h_BTD.reshape(-1, self.d_model).astype(self.dtype)
        logits_NV = product(rows_ND, self.output_VD.astype(self.dtype).T)
        return logits_NV.reshape(*h_BTD.shape[:-1], self.target_vocab)

    def start(self, source_BS: jax.Array) -> tuple[Context, tuple[KV, ...]]:
        """Encodes the source once → what decoding reads of it, and caches without slots."""
        _, source, segments_BS = self.encode(source_BS)
        return Context(source, segments_BS), self.decoder.empty(len(source_BS))

    def step(
        self, token_BN: jax.Array, context: Context, caches: tuple[KV, ...], path: Path
    ) -> tuple[jax.Array, tuple[KV, ...]]:
        """The next token of each hypothesis → logits of the one after (float32 BNV), caches.

        The hypotheses of a sentence are queries of one row beside each other: the source's keys and
        values are held and read once for all of them.
        """
        pos_BT = jnp.broadcast_to(path.step, token_BN.shape)
        slots, hypotheses = path.visible_BNS.shape[-1], token_BN.shape[1]
        h_BTD, caches = self.decoder(
            self._embed(self.target_VD, token_BN),
            context.source,
            caches,
            path,
            pos_BT=pos_BT,
            key_pos_BS=jnp.arange(slots, dtype=jnp.int32)[None] // hypotheses,
            valid_BT=jnp.ones(token_BN.shape, bool),
            mask_BHTS=path.visible_BNS[:, None],
            source_mask_BHTS=(context.segments_BS != 0)[:, None, None, :],
        )
        return self._logits(h_BTD), caches


def grow(caches: tuple[KV, ...], hypotheses: int, tokens: int) -> tuple[KV, ...]:
    """The layers' caches with room for so many tokens of each of a sentence's hypotheses."""
    return tuple(cache.grow(hypotheses, tokens) for cache in caches)

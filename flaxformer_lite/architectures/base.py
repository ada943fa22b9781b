"""What models of text have in common: embeddings, logits, and what they are asked for."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.dense import Dense, product
from flaxformer_lite.shapes import Path, Remembered
from flaxformer_lite.text import Text

# What decoding reads of the source, which hypotheses share, and each layer's cache.
Memory = tuple[Any, tuple[Remembered, ...]]
TIES = ('three', 'two', 'none')


# Tokens, int32 BT, or rows that may be packed.
Rows = jax.Array | Text


class Model(nn.Module):
    """Tokens to logits. Token 0 is padding; a variant overrides `hidden`, `start` and `advance`.

    Attributes:
      tie: which share one matrix (paper §3.4): 'three' (source, target, pre-softmax), 'two' (target
        and pre-softmax) or 'none'.
      scale_embeddings: times √d_model (§3.4).
      dense: the pattern of matrices; the residual stream and logits are float32 whatever its dtype.
      idle: the fields of a `model` config that change nothing, but those of a decoder it has not.

    Raises:
      ValueError: an unknown `tie`.
    """

    idle: ClassVar[tuple[str, ...]] = ()
    d_model: int
    vocab_size: int
    tie: str = 'three'
    scale_embeddings: bool = True
    dense: Dense = Dense(())

    def setup(self):
        if self.tie not in TIES:
            raise ValueError(f'tie must be one of {", ".join(TIES)}, not {self.tie!r}')

        def matrix(name):
            return self.param(
                name, self.dense.initial.embedding, self.vocab_size, self.d_model
            )

        self.target_VD = matrix('embedding')
        self.source_VD = (
            self.target_VD if self.tie == 'three' else matrix('source_embedding')
        )
        self.output_VD = matrix('output') if self.tie == 'none' else self.target_VD

    @property
    def max_length(self) -> int | None:
        """How many tokens a sentence may have; None: as many as one likes."""
        return None

    def embed(self, table_VD: jax.Array, tokens_BT: jax.Array) -> jax.Array:
        """Tokens to vectors, float32 BTD."""
        x_BTD = jnp.take(table_VD, tokens_BT, axis=0)
        return x_BTD * self.d_model**0.5 if self.scale_embeddings else x_BTD

    def hidden(self, source: Text, inputs: Text) -> jax.Array:
        """What is behind each logit of a whole target, float32 BTD."""
        raise NotImplementedError

    def start(self, source_BS: jax.Array) -> Memory:
        """Reads the source once; the caches have no slots yet, and are to be grown."""
        raise NotImplementedError

    def advance(
        self, x_BND: jax.Array, context: Any, caches: tuple[Remembered, ...], path: Path
    ) -> tuple[jax.Array, tuple[Remembered, ...]]:
        """The embedded next token of each hypothesis → what is behind its logits, new caches.

        The hypotheses of a sentence are queries of one row beside each other: the source is held
        and read once for all of them.
        """
        raise NotImplementedError

    def outputs(self, source: Rows, inputs: Rows) -> tuple[jax.Array, jax.Array]:
        """All but the last product: what is behind each logit (BTD) and the output matrix (VD)."""
        h_BTD = self.hidden(Text.of(source), Text.of_inputs(inputs))
        return self._scaled(h_BTD), self.output_VD

    def __call__(self, source: Rows, inputs: Rows) -> jax.Array:
        """Teacher-forced logits, float32 BTV: row t predicts the token after `inputs`' t-th.

        The inputs are the target, shifted right behind a start token. That may be 0: of inputs that
        are tokens alone, the first of each row is no padding, whatever its number.
        """
        return self._logits(self.outputs(source, inputs)[0])

    def step(
        self, token_BN: jax.Array, memory: Memory, path: Path
    ) -> tuple[jax.Array, Memory]:
        """The next token of each hypothesis → logits of the one after (float32 BNV), new memory."""
        context, caches = memory
        x_BND = self.embed(self.target_VD, token_BN)
        h_BND, caches = self.advance(x_BND, context, caches, path)
        return self._logits(self._scaled(h_BND)), (context, caches)

    def _scaled(self, h_BTD):
        scale = self.dense.initial.logits
        return h_BTD if scale == 1 else h_BTD * scale

    def _logits(self, h_BTD):
        dtype = self.dense.dtype
        rows_ND = h_BTD.reshape(-1, self.d_model).astype(dtype)
        logits_NV = product(rows_ND, self.output_VD.astype(dtype).T)
        return logits_NV.reshape(*h_BTD.shape[:-1], self.vocab_size)


def grow(memory: Memory, hypotheses: int, tokens: int) -> Memory:
    """The memory with room for so many tokens of each of a sentence's hypotheses."""
    context, caches = memory
    return context, tuple(cache.grow(hypotheses, tokens) for cache in caches)

"""Hypotheses of sentences with their scores."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from flaxformer_lite.kv_cache import gather_beams


class DecodeResult(NamedTuple):
    """N hypotheses of each sentence, the best first.

    Attributes:
      tokens_BNL: int32, with the end token, then padding.
      scores_BN: float32, log-probability in nats; in beam search divided by the length
        penalty. −inf where there is no such hypothesis.
      exists_BN: bool, False where there is no such hypothesis: fewer than N sentences
        are possible, the row is padding, or the model's logits are not numbers.
    """

    tokens_BNL: jax.Array
    scores_BN: jax.Array
    exists_BN: jax.Array

    def of_row(self, eos: int, *row: int) -> list[tuple[tuple[int, ...], float]]:
        """The tokens and the score of each hypothesis of a row that exists.

        Args:
          eos: the end token, behind which there are none.
          row: its number; before it those of further axes, if the arrays have some.
        """
        found = []
        for tokens_L, score, exists in zip(*(x[row] for x in self), strict=True):
            if exists:
                tokens = tuple(tokens_L.tolist())
                length = tokens.index(eos) + 1 if eos in tokens else len(tokens)
                found.append((tokens[:length], float(score)))
        return found

    def where(self, keep_BN: jax.Array) -> 'DecodeResult':
        """These hypotheses, of which those that are not kept exist no longer."""
        exists_BN = self.exists_BN & keep_BN
        scores_BN = jnp.where(exists_BN, self.scores_BN, -jnp.inf)
        return DecodeResult(self.tokens_BNL, scores_BN, exists_BN)


def concatenate(one: DecodeResult, other: DecodeResult) -> DecodeResult:
    """The hypotheses of one, then of the other."""
    return jax.tree.map(lambda x, y: jnp.concatenate([x, y], 1), one, other)


def best(count: int, hypotheses: DecodeResult) -> DecodeResult:
    """The hypotheses of the highest scores."""
    _, index_BN = jax.lax.top_k(hypotheses.scores_BN, count)
    return _gather(hypotheses, index_BN)


def first(count: int, hypotheses: DecodeResult) -> tuple[DecodeResult, jax.Array]:
    """The first hypotheses that exist, and where they stood: int32 BN."""
    exists_BN = hypotheses.exists_BN
    places = jnp.arange(exists_BN.shape[1], dtype=jnp.float32)
    rank_BN = jnp.where(exists_BN, -places[None], -jnp.inf)
    _, index_BN = jax.lax.top_k(rank_BN, count)
    return _gather(hypotheses, index_BN), index_BN


def _gather(hypotheses: DecodeResult, index_BM: jax.Array) -> DecodeResult:
    """Those with these numbers, in this order."""

    def gather(x_BN):
        return gather_beams(x_BN, index_BM)

    return jax.tree.map(gather, hypotheses)


def write_rows(
    result: DecodeResult, row_B: jax.Array, rows: DecodeResult
) -> DecodeResult:
    """The result with these in the rows of such numbers."""
    return jax.tree.map(lambda x, some: x.at[row_B].set(some), result, rows)

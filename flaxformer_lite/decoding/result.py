"""Hypotheses and their scores."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from flaxformer_lite.kv_cache import gather_beams


class DecodeResult(NamedTuple):
    """Hypotheses of each sentence, best first.

    B is the number of sentences, N that of hypotheses per sentence (`beams` of a beam
    search, else 1), and L the maximum length.

    Attributes:
      tokens: int32 (B, N, L). Padding follows the end token.
      scores: float32 (B, N), log-probability in nats, or the strategy's `score` of it.
        −inf if the hypothesis doesn't exist.
      exists: bool (B, N). False if fewer than N hypotheses are possible, the row is
        padding, or the logits are NaN.

    Examples:
      >>> result = DecodeResult(
      ...     tokens=jnp.array([[[5, 6, 1], [5, 1, 0]]]),
      ...     scores=jnp.array([[-1.0, -2.0]]),
      ...     exists=jnp.array([[True, True]]),
      ... )
      >>> result.tokens[0, 0].tolist()  # the best hypothesis of the first sentence
      [5, 6, 1]
    """

    tokens: jax.Array
    scores: jax.Array
    exists: jax.Array

    def of_row(self, eos: int, *row: int) -> list[tuple[tuple[int, ...], float]]:
        """Returns the tokens and score of each existing hypothesis of a row.

        Args:
          eos: Tokens after it are dropped.
          row: Index of the row, after any leading axes.

        Examples:
          >>> tokens = jnp.array([[[5, 6, 1], [5, 1, 0]]])
          >>> scores = jnp.array([[-1.0, -2.0]])
          >>> DecodeResult(tokens, scores, scores < 0).of_row(1, 0)
          [((5, 6, 1), -1.0), ((5, 1), -2.0)]
        """
        found = []
        for tokens_L, score, exists in zip(*(x[row] for x in self), strict=True):
            if exists:
                tokens = tuple(tokens_L.tolist())
                length = tokens.index(eos) + 1 if eos in tokens else len(tokens)
                found.append((tokens[:length], float(score)))
        return found

    def where(self, keep_BN: jax.Array) -> 'DecodeResult':
        """Marks hypotheses as nonexistent where `keep_BN` is False."""
        exists_BN = self.exists & keep_BN
        scores_BN = jnp.where(exists_BN, self.scores, -jnp.inf)
        return DecodeResult(self.tokens, scores_BN, exists_BN)


def concatenate(one: DecodeResult, other: DecodeResult) -> DecodeResult:
    return jax.tree.map(lambda x, y: jnp.concatenate([x, y], 1), one, other)


def best(count: int, hypotheses: DecodeResult) -> DecodeResult:
    _, index_BN = jax.lax.top_k(hypotheses.scores, count)
    return _gather(hypotheses, index_BN)


def first(count: int, hypotheses: DecodeResult) -> tuple[DecodeResult, jax.Array]:
    """Returns the first existing hypotheses and their original indices, int32 BN."""
    exists_BN = hypotheses.exists
    places = jnp.arange(exists_BN.shape[1], dtype=jnp.float32)
    rank_BN = jnp.where(exists_BN, -places[None], -jnp.inf)
    _, index_BN = jax.lax.top_k(rank_BN, count)
    return _gather(hypotheses, index_BN), index_BN


def _gather(hypotheses: DecodeResult, index_BM: jax.Array) -> DecodeResult:

    def gather(x_BN):
        return gather_beams(x_BN, index_BM)

    return jax.tree.map(gather, hypotheses)


def write_rows(
    result: DecodeResult, row_B: jax.Array, rows: DecodeResult
) -> DecodeResult:
    return jax.tree.map(lambda x, some: x.at[row_B].set(some), result, rows)

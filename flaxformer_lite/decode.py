"""Decoding: greedy, beam and sampling over any step function; nothing here knows what a model is.

A step is `(token_B, cache, i) → (logits_BV, cache)`: the token at position i and the cache of
positions before it, to the logits of the next. Every leaf of a cache has the batch as its first
axis; hypotheses of one sentence are a second axis, over which the step is vmapped, so that what the
step closes over (the encoder's output) is held and read once a sentence. Token 0 is padding.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Cache = Any
Step = Callable[[jax.Array, Cache, jax.Array], tuple[jax.Array, Cache]]

# Far below any sum of log-probabilities, and finite, so that differences stay numbers.
NEVER = -1.0e9


class Decoded(NamedTuple):
    """The best N of each sentence, best first.

    Attributes:
      tokens_BNL: int32, with their end token where they have one, then padding.
      scores_BN: float32 log-probability, in nats, over the length penalty (beam) or as it is.
    """

    tokens_BNL: jax.Array
    scores_BN: jax.Array


def _loop(choose, step: Step, cache: Cache, limits_B: jax.Array, bos: int, eos: int, length: int):
    """One token at a time by `choose(logits_BV, i) → token_B` until each row has ended."""
    batch = len(limits_B)

    def going(state):
        i, _, _, _, done_B, _ = state
        return (i < length) & ~done_B.all()

    def body(state):
        i, token_B, tokens_BL, score_B, done_B, cache = state
        logits_BV, cache = step(token_B, cache, i)
        logits_BV = logits_BV.astype(jnp.float32)
        # A row at its limit ends: its last token is the end token, as a beam's is.
        token_B = jnp.where(i + 1 >= limits_B, eos, choose(logits_BV, i))
        log_p_B = jnp.take_along_axis(logits_BV, token_B[:, None], -1)[:, 0]
        log_p_B -= jax.nn.logsumexp(logits_BV, -1)
        token_B = jnp.where(done_B, 0, token_B)
        score_B += jnp.where(done_B, 0.0, log_p_B)
        tokens_BL = tokens_BL.at[:, i].set(token_B)
        return i + 1, token_B, tokens_BL, score_B, done_B | (token_B == eos), cache

    start = (
        jnp.int32(0),
        jnp.full((batch,), bos, jnp.int32),
        jnp.zeros((batch, length), jnp.int32),
        jnp.zeros((batch,), jnp.float32),
        limits_B < 1,
        cache,
    )
    _, _, tokens_BL, score_B, _, _ = jax.lax.while_loop(going, body, start)
    return Decoded(tokens_BL[:, None], score_B[:, None])


def greedy(
    step: Step, cache: Cache, limits_B: jax.Array, *, bos: int, eos: int, length: int
) -> Decoded:
    """The likeliest token each time.

    Args:
      limits_B: int32, the most tokens of each row, its end token counted; at most `length`, and 0
        for a row that is padding.
      length: the size of the buffers, static.
    """

    def choose(logits_BV, i):
        return jnp.argmax(logits_BV, -1).astype(jnp.int32)

    return _loop(choose, step, cache, limits_B, bos, eos, length)


def sample(
    step: Step,
    cache: Cache,
    limits_B: jax.Array,
    keys_B: jax.Array,
    *,
    bos: int,
    eos: int,
    length: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> Decoded:
    """A token drawn each time, from `filtered` logits, by the row's own key.

    Args:
      keys_B: a key for each row, so that what a row draws does not depend on the rows beside it.
      Others: as `greedy` and `filtered`.
    """

    def choose(logits_BV, i):
        logits_BV = filtered(logits_BV, temperature, top_k, top_p)
        keys = jax.vmap(jax.random.fold_in, (0, None))(keys_B, i)
        return jax.vmap(jax.random.categorical)(keys, logits_BV).astype(jnp.int32)

    return _loop(choose, step, cache, limits_B, bos, eos, length)


def filtered(
    logits_BV: jax.Array, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> jax.Array:
    """Logits / temperature, −inf outside the top k (0: all) and outside the nucleus of mass p.

    The nucleus is the smallest set of likeliest tokens whose mass reaches p (Holtzman et al. 2020).

    Raises:
      ValueError: temperature ≤ 0 (that is `greedy`), top_k < 0, or top_p not in (0, 1].
    """
    if not (temperature > 0 and top_k >= 0 and 0 < top_p <= 1):
        raise ValueError(
            f'sampling needs temperature > 0, top_k ≥ 0 and 0 < top_p ≤ 1, not '
            f'{temperature}, {top_k} and {top_p}'
        )
    logits_BV = logits_BV / temperature
    if 0 < top_k < logits_BV.shape[-1]:
        least_B1 = jax.lax.top_k(logits_BV, top_k)[0][:, -1:]
        logits_BV = jnp.where(logits_BV >= least_B1, logits_BV, -jnp.inf)
    if top_p < 1:
        sorted_BV = -jnp.sort(-logits_BV, axis=-1)
        p_BV = jax.nn.softmax(sorted_BV, -1)
        # A token is in if the mass before it has not reached p; the likeliest always is.
        inside_BV = jnp.cumsum(p_BV, -1) - p_BV < top_p
        least_B1 = jnp.where(inside_BV, sorted_BV, jnp.inf).min(-1, keepdims=True)
        logits_BV = jnp.where(logits_BV >= least_B1, logits_BV, -jnp.inf)
    return logits_BV


def length_penalty(length: jax.Array | int, alpha: float) -> jax.Array | float:
    """((5 + length) / 6)^α (Wu et al. 2016, equation 14); the end token counts."""
    return ((5.0 + length) / 6.0) ** alpha


class _Beams(NamedTuple):
    """The state of a beam search. Live hypotheses have no end token yet, finished ones have."""

    i: jax.Array
    live_BNL: jax.Array
    live_score_BN: jax.Array
    done_BNL: jax.Array
    done_score_BN: jax.Array
    cache: Cache


def beam(
    step: Step,
    cache: Cache,
    limits_B: jax.Array,
    *,
    bos: int,
    eos: int,
    length: int,
    beams: int = 4,
    alpha: float = 0.6,
    best: int = 1,
) -> Decoded:
    """Beam search with GNMT's length penalty: score / ((5 + L) / 6)^α (paper §6.1).

    A sentence stops when no live hypothesis can still come among its `best`, or at its limit.

    Args:
      limits_B, length: as `greedy`.
      beams: N, live hypotheses and results.
      alpha: 0 for no penalty.
      best: so many of the results are final; those after them may have been overtaken had the
        search gone on.

    Raises:
      ValueError: beams < 1, alpha < 0, or best not in 1 … beams.
    """
    if not (1 <= best <= beams and alpha >= 0):
        raise ValueError(
            f'beam search needs 1 ≤ best ≤ beams and alpha ≥ 0, not {best}, {beams} and {alpha}'
        )
    batch = len(limits_B)
    # All begin alike, so only the first may be continued.
    start_BN = jnp.broadcast_to(jnp.where(jnp.arange(beams) == 0, 0.0, NEVER), (batch, beams))
    tokens_BNL = jnp.zeros((batch, beams, length), jnp.int32)
    never_BN = jnp.full((batch, beams), NEVER)
    wide = jax.vmap(step, in_axes=(1, 1, None), out_axes=1)
    repeat = jax.tree.map(lambda x: jnp.repeat(x[:, None], beams, axis=1), cache)

    def unfinished_B(state: _Beams) -> jax.Array:
        # Scores only fall; so the most a live one can reach is its sum over the largest penalty.
        reach_B = state.live_score_BN.max(-1) / length_penalty(limits_B, alpha)
        return (state.i < limits_B) & (reach_B > state.done_score_BN[:, best - 1])

    def body(state: _Beams) -> _Beams:
        i = state.i
        last_BN = jnp.where(i == 0, bos, state.live_BNL[:, :, i - 1])
        logits_BNV, cache = wide(last_BN, state.cache, i)
        log_p_BNV = jax.nn.log_softmax(logits_BNV.astype(jnp.float32), -1)
        # A sentence at its limit can only end.
        must_end_BNV = (i + 1 >= limits_B)[:, None, None] & (jnp.arange(log_p_BNV.shape[-1]) != eos)
        log_p_BNV = jnp.where(must_end_BNV, NEVER, log_p_BNV)
        score_BM, parent_BM, token_BM = _candidates(log_p_BNV, state.live_score_BN, 2 * beams)
        path_BML = _take(state.live_BNL, parent_BM).at[:, :, i].set(token_BM)
        open_B1 = unfinished_B(state)[:, None]

        ends_BM = (token_BM == eos) & open_B1
        final_BM = jnp.where(ends_BM, score_BM / length_penalty(i + 1.0, alpha), NEVER)
        done_score_BN, kept_BN = jax.lax.top_k(
            jnp.concatenate([state.done_score_BN, final_BM], 1), beams
        )
        done_BNL = _take(jnp.concatenate([state.done_BNL, path_BML], 1), kept_BN)

        live_score_BN, kept_BN = jax.lax.top_k(jnp.where(token_BM == eos, NEVER, score_BM), beams)
        live_BNL = _take(path_BML, kept_BN)
        parent_BN = jnp.take_along_axis(parent_BM, kept_BN, 1)
        cache = jax.tree.map(lambda x: _take(x, parent_BN), cache)
        return _Beams(i + 1, live_BNL, live_score_BN, done_BNL, done_score_BN, cache)

    def going(state: _Beams) -> jax.Array:
        return unfinished_B(state).any() & (state.i < length)

    start = _Beams(jnp.int32(0), tokens_BNL, start_BN, tokens_BNL, never_BN, repeat)
    end = jax.lax.while_loop(going, body, start)
    return Decoded(end.done_BNL, end.done_score_BN)


def _candidates(log_p_BNV, score_BN, count: int):
    """The best `count` continuations over all hypotheses → scores, parents and tokens (BM)."""
    vocab = log_p_BNV.shape[-1]
    total_BM = (score_BN[..., None] + log_p_BNV).reshape(len(score_BN), -1)
    score_BM, index_BM = jax.lax.top_k(total_BM, count)
    return score_BM, index_BM // vocab, index_BM % vocab


def _take(x_BN: jax.Array, index_BM: jax.Array) -> jax.Array:
    """Hypotheses by index: x[b, index[b, m]]."""
    return jax.vmap(lambda x_N, index_M: x_N[index_M])(x_BN, index_BM)

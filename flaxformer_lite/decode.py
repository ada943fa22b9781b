"""Decoding: greedy, beam and sampling over any step function; nothing here knows what a model is.

A step is `(token_BN, cache, path) → (logits_BNV, cache)`: the token at position `path.step` of each
of a sentence's N hypotheses, to the logits of the next. What a cache is only the step knows, and
`grow(cache, slots)`, which makes room in it. Token 0 is padding.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flaxformer_lite.shapes import Path

Cache = Any
Step = Callable[[jax.Array, Cache, Path], tuple[jax.Array, Cache]]
Grow = Callable[[Cache, int], Cache]

# Far below any sum of log-probabilities, and finite, so that differences stay numbers.
NEVER = -1.0e9
# A cache begins with room for so many tokens and grows by this factor: short translations, the most
# of them, don't pay for the room that the longest one may need.
ROOM, GROWTH = 32, 4


class Decoded(NamedTuple):
    """The results of each sentence, best first.

    Attributes:
      tokens_BNL: int32, with their end token, then padding.
      scores_BN: float32, log-probability in nats; beam search's is over the length penalty.
    """

    tokens_BNL: jax.Array
    scores_BN: jax.Array


class _State(NamedTuple):
    """What goes from step to step. Live hypotheses have no end token yet, finished ones have.

    Attributes:
      step: int32 scalar.
      live_BNL, live_score_BN: tokens so far, and their log-probability.
      done_BML, done_score_BM: the best that have ended.
      parent_BN, visible_BNS: as `Path`, before the step's own slots are shown.
    """

    step: jax.Array
    live_BNL: jax.Array
    live_score_BN: jax.Array
    done_BML: jax.Array
    done_score_BM: jax.Array
    parent_BN: jax.Array
    visible_BNS: jax.Array
    cache: Cache


def greedy(
    step: Step, grow: Grow, cache: Cache, limits_B: jax.Array, *, bos: int, eos: int, length: int
) -> Decoded:
    """The likeliest token each time.

    Args:
      limits_B: int32, the most tokens of each row, its end token counted; at most `length`, and 0
        for a row that is padding. A row at its limit ends there, with the end token.
      length: the size of the buffers, static.
    """

    def choose(logits_BV, i):
        return _argmax(logits_BV)

    return _one_path(choose, step, grow, cache, limits_B, bos, eos, length)


def sample(
    step: Step,
    grow: Grow,
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
    """A token drawn each time from `filtered` logits.

    Args:
      keys_B: a key for each row, so that what a row draws does not depend on the rows beside it.
      Others: as `greedy` and `filtered`.
    """

    def choose(logits_BV, i):
        logits_BV = filtered(logits_BV, temperature, top_k, top_p)
        keys = jax.vmap(jax.random.fold_in, (0, None))(keys_B, i)
        return jax.vmap(jax.random.categorical)(keys, logits_BV).astype(jnp.int32)

    return _one_path(choose, step, grow, cache, limits_B, bos, eos, length)


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


def beam(
    step: Step,
    grow: Grow,
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
    """Beam search with GNMT's length penalty: log-probability / ((5 + L) / 6)^α (paper §6.1).

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

    def open_B(state: _State) -> jax.Array:
        # Log-probabilities only fall, so a live one can reach at most this.
        reach_B = state.live_score_BN.max(-1) / length_penalty(limits_B, alpha)
        return (state.step < limits_B) & (reach_B > state.done_score_BM[:, best - 1])

    def extend(state: _State, logits_BNV: jax.Array) -> _State:
        i = state.step
        score_BM, parent_BM, token_BM = _candidates(
            logits_BNV, state.live_score_BN, 2 * beams, eos, must_end_B=i + 1 >= limits_B
        )
        path_BML = _take(state.live_BNL, parent_BM).at[:, :, i].set(token_BM)
        ended_BM = token_BM == eos

        final_BM = score_BM / length_penalty(i + 1, alpha)
        final_BM = jnp.where(ended_BM & open_B(state)[:, None], final_BM, NEVER)
        done_score_BM, kept_BM = jax.lax.top_k(
            jnp.concatenate([state.done_score_BM, final_BM], 1), beams
        )
        done_BML = _take(jnp.concatenate([state.done_BML, path_BML], 1), kept_BM)

        live_score_BN, kept_BN = jax.lax.top_k(jnp.where(ended_BM, NEVER, score_BM), beams)
        return state._replace(
            live_BNL=_take(path_BML, kept_BN),
            live_score_BN=live_score_BN,
            done_BML=done_BML,
            done_score_BM=done_score_BM,
            parent_BN=jnp.take_along_axis(parent_BM, kept_BN, 1),
        )

    end = _search(open_B, extend, step, grow, cache, len(limits_B), beams, bos, length)
    return Decoded(end.done_BML, end.done_score_BM)


def length_penalty(length: jax.Array | int, alpha: float) -> jax.Array | float:
    """((5 + length) / 6)^α (Wu et al. 2016, equation 14); the end token counts."""
    return ((5.0 + length) / 6.0) ** alpha


def _one_path(choose, step, grow, cache, limits_B, bos, eos, length) -> Decoded:
    """One hypothesis a sentence, its tokens by `choose(logits_BV, i) → token_B`."""

    def open_B(state: _State) -> jax.Array:
        return (state.step < limits_B) & (state.done_score_BM[:, 0] == NEVER)

    def extend(state: _State, logits_BNV: jax.Array) -> _State:
        i, logits_BV = state.step, logits_BNV[:, 0].astype(jnp.float32)
        token_B = jnp.where(i + 1 >= limits_B, eos, choose(logits_BV, i))
        label_B = jnp.take_along_axis(logits_BV, token_B[:, None], -1)[:, 0]
        score_B = state.live_score_BN[:, 0] + label_B - jax.nn.logsumexp(logits_BV, -1)
        live_BNL = state.live_BNL.at[:, 0, i].set(token_B)
        ends_B1 = (open_B(state) & (token_B == eos))[:, None]
        return state._replace(
            live_BNL=live_BNL,
            live_score_BN=score_B[:, None],
            done_BML=jnp.where(ends_B1[..., None], live_BNL, state.done_BML),
            done_score_BM=jnp.where(ends_B1, score_B[:, None], state.done_score_BM),
        )

    end = _search(open_B, extend, step, grow, cache, len(limits_B), 1, bos, length)
    return Decoded(end.done_BML, end.done_score_BM)


def _search(open_B, extend, step, grow, cache, batch, beams, bos, length) -> _State:
    """Steps until no sentence is open: each a step of the model, then `extend(state, logits)`."""

    def going(state: _State) -> jax.Array:
        room = state.visible_BNS.shape[-1] // beams
        return (state.step < room) & open_B(state).any()

    def body(state: _State) -> _State:
        i = state.step
        visible_BNS = _take(state.visible_BNS, state.parent_BN)
        own_NN = jnp.broadcast_to(jnp.eye(beams, dtype=bool), (batch, beams, beams))
        visible_BNS = jax.lax.dynamic_update_slice_in_dim(visible_BNS, own_NN, i * beams, 2)
        last_BN = jnp.where(i == 0, bos, state.live_BNL[:, :, jnp.maximum(i - 1, 0)])
        path = Path(i, state.parent_BN, visible_BNS)
        logits_BNV, cache = step(last_BN, state.cache, path)
        state = state._replace(visible_BNS=visible_BNS, cache=cache)
        return extend(state, logits_BNV)._replace(step=i + 1)

    tokens_BNL = jnp.zeros((batch, beams, length), jnp.int32)
    never_BN = jnp.full((batch, beams), NEVER)
    state = _State(
        step=jnp.int32(0),
        live_BNL=tokens_BNL,
        # All hypotheses begin alike, so only the first may be continued.
        live_score_BN=never_BN.at[:, 0].set(0.0),
        done_BML=tokens_BNL,
        done_score_BM=never_BN,
        parent_BN=jnp.zeros((batch, beams), jnp.int32),
        visible_BNS=jnp.zeros((batch, beams, 0), bool),
        cache=cache,
    )
    for room in _rooms(length):
        added = room * beams - state.visible_BNS.shape[-1]
        state = state._replace(
            visible_BNS=jnp.pad(state.visible_BNS, ((0, 0), (0, 0), (0, added))),
            cache=grow(state.cache, room * beams),
        )
        state = jax.lax.while_loop(going, body, state)
    return state


def _rooms(length: int) -> list[int]:
    """How many tokens a cache has room for, stage after stage: 32, 128, …, length."""
    rooms = [ROOM]
    while rooms[-1] * GROWTH < length:
        rooms.append(rooms[-1] * GROWTH)
    return [*(room for room in rooms if room < length), length]


def _candidates(logits_BNV, score_BN, count: int, eos: int, must_end_B):
    """The best continuations over all hypotheses → scores, parents and tokens (BM)."""
    logits_BNV = logits_BNV.astype(jnp.float32)
    vocab = logits_BNV.shape[-1]
    offset_BN = score_BN - jax.nn.logsumexp(logits_BNV, -1)
    barred_BNV = must_end_B[:, None, None] & (jnp.arange(vocab) != eos)[None, None]
    total_BNV = jnp.where(barred_BNV, NEVER, logits_BNV + offset_BN[..., None])
    score_BM, index_BM = _top_k(total_BNV.reshape(len(score_BN), -1), count)
    return score_BM, index_BM // vocab, index_BM % vocab


def _top_k(x_BV: jax.Array, k: int, block: int = 128) -> tuple[jax.Array, jax.Array]:
    """`jax.lax.top_k`, for a k far below V: several times faster on CPU.

    The k largest lie in the k blocks with the largest maxima, so only those are sorted.
    """
    batch, size = x_BV.shape
    if size < 2 * k * block:
        return jax.lax.top_k(x_BV, k)
    padding = ((0, 0), (0, -size % block))
    blocks_BCV = jnp.pad(x_BV, padding, constant_values=-jnp.inf).reshape(batch, -1, block)
    # In order, so that equal values come out by index, as top_k's do.
    chosen_BK = jnp.sort(jax.lax.top_k(blocks_BCV.max(-1), k)[1], -1)
    few_BV = jnp.take_along_axis(blocks_BCV, chosen_BK[..., None], 1).reshape(batch, -1)
    value_BK, index_BK = jax.lax.top_k(few_BV, k)
    start_BK = jnp.take_along_axis(chosen_BK, index_BK // block, 1) * block
    return value_BK, start_BK + index_BK % block


def _argmax(x_BV: jax.Array) -> jax.Array:
    """`jnp.argmax` over the last axis, in two passes that vectorise on CPU, as argmax does not."""
    index_V = jnp.arange(x_BV.shape[-1], dtype=jnp.int32)[None]
    top_B1 = x_BV.max(-1, keepdims=True)
    return jnp.where(x_BV == top_B1, index_V, x_BV.shape[-1]).min(-1)


def _take(x_BN: jax.Array, index_BM: jax.Array) -> jax.Array:
    """Hypotheses by index: x[b, index[b, m]]."""
    return jax.vmap(lambda x_N, index_M: x_N[index_M])(x_BN, index_BM)

"""Beam search with a length penalty (paper §6.1)."""

import jax
import jax.numpy as jnp

from flaxformer_lite.decode.loop import NEVER, Decoded, State, Task, search
from flaxformer_lite.shapes import take


def beam(task: Task, beams: int = 4, alpha: float = 0.6, best: int = 1) -> Decoded:
    """Beam search with GNMT's length penalty: log-probability / ((5 + L) / 6)^α.

    A sentence stops when no live hypothesis can still come among its `best`, or at its limit.

    Args:
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

    def is_open(state: State) -> jax.Array:
        # Log-probabilities only fall, so a live one can reach at most this.
        reach_B = state.live_score_BN.max(-1) / length_penalty(state.limits_B, alpha)
        return (state.step < state.limits_B) & (reach_B > state.done_score_BM[:, best - 1])

    def extend(state: State, logits_BNV: jax.Array) -> State:
        i = state.step
        allowed_BV = _allowed(task, state, logits_BNV.shape[-1])
        score_BM, parent_BM, token_BM = _candidates(
            logits_BNV, state.live_score_BN, allowed_BV, 2 * beams
        )
        path_BML = take(state.live_BNL, parent_BM).at[:, :, i].set(token_BM)
        ended_BM = token_BM == task.eos

        final_BM = score_BM / length_penalty(i + 1, alpha)
        final_BM = jnp.where(ended_BM & is_open(state)[:, None], final_BM, NEVER)
        done_score_BM, kept_BM = jax.lax.top_k(
            jnp.concatenate([state.done_score_BM, final_BM], 1), beams
        )
        done_BML = take(jnp.concatenate([state.done_BML, path_BML], 1), kept_BM)

        live_score_BN, kept_BN = jax.lax.top_k(jnp.where(ended_BM, NEVER, score_BM), beams)
        return state._replace(
            live_BNL=take(path_BML, kept_BN),
            live_score_BN=live_score_BN,
            done_BML=done_BML,
            done_score_BM=done_score_BM,
            parent_BN=jnp.take_along_axis(parent_BM, kept_BN, 1),
        )

    return search(task, is_open, extend, beams)


def length_penalty(length: jax.Array | int, alpha: float) -> jax.Array | float:
    """((5 + length) / 6)^α (Wu et al. 2016, equation 14); the end token counts."""
    return ((5.0 + length) / 6.0) ** alpha


def _allowed(task: Task, state: State, vocab: int) -> jax.Array:
    """Which tokens may come next: no padding and no start token, and at the limit only the end."""
    token_V, last_B1 = jnp.arange(vocab), (state.step + 1 >= state.limits_B)[:, None]
    return jnp.where(last_B1, token_V == task.eos, (token_V != 0) & (token_V != task.bos))


def _candidates(logits_BNV, score_BN, allowed_BV, count: int):
    """The best continuations over all hypotheses → scores, parents and tokens (BM)."""
    vocab = logits_BNV.shape[-1]
    offset_BN = score_BN - jax.nn.logsumexp(logits_BNV, -1)
    total_BNV = jnp.where(allowed_BV[:, None], logits_BNV + offset_BN[..., None], NEVER)
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

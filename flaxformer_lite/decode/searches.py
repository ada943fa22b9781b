"""The searches, each by what it chooses to go on with."""

import jax
import jax.numpy as jnp

from flaxformer_lite.decode.loop import Decoded, Task, search


def greedy(task: Task) -> Decoded:
    """The likeliest token each time."""
    return search(task, lambda state, logits_BNV, total_BNV: _largest(logits_BNV, 1))


def beam(task: Task, beams: int = 4, alpha: float = 0.6, best: int = 1) -> Decoded:
    """Beam search (paper §6.1) with GNMT's length penalty: log-probability / ((5 + L) / 6)^α.

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
        given = f'{best}, {beams} and {alpha}'
        raise ValueError(
            f'beam search needs 1 ≤ best ≤ beams and alpha ≥ 0, not {given}'
        )

    def choose(state, logits_BNV, total_BNV):
        # At most N of them end, so that N can go on.
        return _largest(total_BNV, 2 * beams)

    return search(task, choose, beams, alpha, best)


def sample(
    task: Task,
    keys_B: jax.Array,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> Decoded:
    """A token drawn each time from `filtered` logits.

    Args:
      keys_B: a key for each row, so that what a row draws does not depend on the rows beside it.
      temperature, top_k, top_p: as `filtered`, which raises for them.
    """

    def draw(state, logits_BNV, total_BNV):
        keys = jax.vmap(jax.random.fold_in, (0, None))(
            keys_B[state.row_B], state.path.step
        )
        logits_BV = filtered(logits_BNV[:, 0], temperature, top_k, top_p)
        return jax.vmap(jax.random.categorical)(keys, logits_BV)[:, None].astype(
            jnp.int32
        )

    return search(task, draw)


def filtered(
    logits_BV: jax.Array, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> jax.Array:
    """Logits / temperature, −inf outside the top k (0: all) and outside the nucleus of mass p.

    The nucleus is the smallest set of likeliest tokens whose mass reaches p (Holtzman et al. 2020),
    of what the top k left. Of equally likely tokens the first are the likelier.

    Raises:
      ValueError: temperature ≤ 0 (that is `greedy`), top_k < 0, or top_p not in (0, 1].
    """
    if not (temperature > 0 and top_k >= 0 and 0 < top_p <= 1):
        given = f'{temperature}, {top_k} and {top_p}'
        raise ValueError(
            f'sampling needs temperature > 0, top_k ≥ 0 and 0 < top_p ≤ 1, not {given}'
        )
    logits_BV = logits_BV / temperature
    if not top_k and top_p == 1:
        return logits_BV
    order_BV = jnp.argsort(-logits_BV, axis=-1)
    in_k_V = jnp.arange(logits_BV.shape[-1]) < (top_k or logits_BV.shape[-1])
    sorted_BV = jnp.take_along_axis(logits_BV, order_BV, -1)
    p_BV = jax.nn.softmax(jnp.where(in_k_V[None], sorted_BV, -jnp.inf), -1)
    # A token is in if the mass before it has not reached p; the likeliest always is.
    kept_BV = in_k_V[None] & ((jnp.cumsum(p_BV, -1) - p_BV < top_p) | (top_p == 1))
    kept_BV = jnp.put_along_axis(kept_BV, order_BV, kept_BV, -1, inplace=False)
    return jnp.where(kept_BV, logits_BV, -jnp.inf)


def _largest(x_BNV: jax.Array, k: int, block: int = 64) -> jax.Array:
    """Where each sentence's k largest are: `jax.lax.top_k`, on CPU several times faster.

    Only the k blocks with the largest maxima are sorted, and what the last of all leaves over.
    """
    # −0 is 0, and of equals the first comes first; to top_k it is less.
    x_BV = jnp.where(x_BNV == 0, 0.0, x_BNV).reshape(len(x_BNV), -1)
    blocks = x_BV.shape[1] // block
    if blocks < 2 * k:
        return jax.lax.top_k(x_BV, k)[1]
    blocks_BCV = x_BV[:, : blocks * block].reshape(len(x_BV), blocks, block)
    # In order, so that equal values come out by index, as top_k's do.
    chosen_BK = jnp.sort(jax.lax.top_k(blocks_BCV.max(-1), k)[1], -1)
    few_BV = jnp.take_along_axis(blocks_BCV, chosen_BK[..., None], 1).reshape(
        len(x_BV), -1
    )
    index_BK = jax.lax.top_k(
        jnp.concatenate([few_BV, x_BV[:, blocks * block :]], 1), k
    )[1]
    chosen_BK = jnp.pad(chosen_BK, ((0, 0), (0, 1)), constant_values=blocks)
    return (
        jnp.take_along_axis(chosen_BK, index_BK // block, 1) * block + index_BK % block
    )

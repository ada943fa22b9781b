"""One hypothesis a sentence: greedy decoding and sampling."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from flaxformer_lite.decode.loop import NEVER, Decoded, State, Task, search


def greedy(task: Task) -> Decoded:
    """The likeliest token each time."""
    return _one_path(task, lambda state, logits_BV: _argmax(logits_BV))


def sample(
    task: Task, keys_B: jax.Array, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> Decoded:
    """A token drawn each time from `filtered` logits.

    Args:
      keys_B: a key for each row, so that what a row draws does not depend on the rows beside it.
      temperature, top_k, top_p: as `filtered`, which raises for them.
    """

    def draw(state: State, logits_BV: jax.Array) -> jax.Array:
        logits_BV = filtered(logits_BV, temperature, top_k, top_p)
        keys = jax.vmap(jax.random.fold_in, (0, None))(state.keys_B, state.step)
        return jax.vmap(jax.random.categorical)(keys, logits_BV).astype(jnp.int32)

    return _one_path(task, draw, keys_B)


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
        raise ValueError(
            f'sampling needs temperature > 0, top_k ≥ 0 and 0 < top_p ≤ 1, not '
            f'{temperature}, {top_k} and {top_p}'
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


def _one_path(
    task: Task, choose: Callable[[State, jax.Array], jax.Array], keys_B: jax.Array | None = None
) -> Decoded:
    """One hypothesis a sentence, its tokens by `choose(state, logits_BV) → token_B`."""

    def is_open(state: State) -> jax.Array:
        return (state.step < state.limits_B) & (state.done_score_BM[:, 0] == NEVER)

    def extend(state: State, logits_BNV: jax.Array) -> State:
        i, logits_BV = state.step, logits_BNV[:, 0]
        barred = jnp.array([0, task.bos])
        barred_BV, logits_BV = logits_BV[:, barred], logits_BV.at[:, barred].set(-jnp.inf)
        token_B = jnp.where(i + 1 >= state.limits_B, task.eos, choose(state, logits_BV))
        # What is barred counts in the sum of probabilities; looked up before, for it saves a copy.
        sums_B2 = jnp.stack([jax.nn.logsumexp(x, -1) for x in (logits_BV, barred_BV)], -1)
        label_B = jnp.take_along_axis(logits_BV, token_B[:, None], -1)[:, 0]
        score_B = state.live_score_BN[:, 0] + label_B - jax.nn.logsumexp(sums_B2, -1)
        live_BNL = state.live_BNL.at[:, 0, i].set(token_B)
        ends_B1 = (is_open(state) & (token_B == task.eos))[:, None]
        return state._replace(
            live_BNL=live_BNL,
            live_score_BN=score_B[:, None],
            done_BML=jnp.where(ends_B1[..., None], live_BNL, state.done_BML),
            done_score_BM=jnp.where(ends_B1, score_B[:, None], state.done_score_BM),
        )

    return search(task, is_open, extend, keys_B=keys_B)


def _argmax(x_BV: jax.Array) -> jax.Array:
    """`jnp.argmax` over the last axis: the first block with the largest maximum, and in it.

    On CPU that is one pass at the speed of memory, which argmax itself is far from. Among values
    that are not numbers it takes a token of the vocabulary, in any case.
    """
    vocab = x_BV.shape[-1]
    block = next((n for n in range(128, 63, -1) if vocab % n == 0), 128)
    padding = ((0, 0), (0, -vocab % block))
    blocks_BCV = jnp.pad(x_BV, padding, constant_values=-jnp.inf).reshape(len(x_BV), -1, block)
    chosen_B = _first_largest(blocks_BCV.max(-1))
    few_BV = jnp.take_along_axis(blocks_BCV, chosen_B[:, None, None], 1)[:, 0]
    return jnp.minimum(chosen_B * block + _first_largest(few_BV), vocab - 1)


def _first_largest(x_BV: jax.Array) -> jax.Array:
    index_V = jnp.arange(x_BV.shape[-1], dtype=jnp.int32)[None]
    top_B1 = x_BV.max(-1, keepdims=True)
    return jnp.where(x_BV < top_B1, x_BV.shape[-1], index_V).min(-1)

"""Greedy decoding, beam search and sampling: each is what it chooses at a step."""

import jax
import jax.numpy as jnp

from flaxformer_lite.decoding.result import DecodeResult
from flaxformer_lite.decoding.search import DecodeInputs, Search
from flaxformer_lite.ops.top_k import top_k_indices


def greedy(inputs: DecodeInputs) -> DecodeResult:
    """The likeliest token at each step."""

    def choose(state, logits_BNV, total_BNV):
        return top_k_indices(_flat(logits_BNV), 1)

    return Search(inputs, choose)()


def beam(
    inputs: DecodeInputs, beams: int = 4, alpha: float = 0.6, n_best: int = 1
) -> DecodeResult:
    """Beam search (paper §6.1) with GNMT's length penalty.

    The score of a finished hypothesis is its log-probability / ((5 + L) / 6)^α. A
    sentence stops when no live hypothesis can still come among its `n_best`, or at its
    limit.

    Args:
      inputs: what is decoded.
      beams: live hypotheses, and results, of each sentence.
      alpha: α; 0 for no penalty.
      n_best: so many of the results are final. A longer search might have found better
        ones than those after them.

    Raises:
      ValueError: beams < 1, alpha < 0, or n_best not in 1 … beams.
    """
    if not (1 <= n_best <= beams and alpha >= 0):
        raise ValueError(
            'beam search needs 1 ≤ n_best ≤ beams and alpha ≥ 0, not '
            f'{n_best}, {beams} and {alpha}'
        )

    def choose(state, logits_BNV, total_BNV):
        # At most N of these 2 N end, so that N can go on.
        return top_k_indices(_flat(total_BNV), 2 * beams)

    return Search(inputs, choose, beams, alpha, n_best)()


def sample(
    inputs: DecodeInputs,
    keys_B: jax.Array,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> DecodeResult:
    """A token drawn at each step, from the logits that `filter_logits` leaves.

    Args:
      inputs: what is decoded.
      keys_B: a key for each row: what a row draws does not depend on the other rows.
      temperature, top_k, top_p: as `filter_logits`.

    Raises:
      ValueError: as `filter_logits`.
    """

    def choose(state, logits_BNV, total_BNV):
        fold_in = jax.vmap(jax.random.fold_in, (0, None))
        step_keys_B = fold_in(keys_B[state.row_B], state.beam.step)
        logits_BV = filter_logits(logits_BNV[:, 0], temperature, top_k, top_p)
        drawn_B = jax.vmap(jax.random.categorical)(step_keys_B, logits_BV)
        return drawn_B[:, None].astype(jnp.int32)

    return Search(inputs, choose)()


def filter_logits(
    logits_BV: jax.Array, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> jax.Array:
    """Logits / temperature, −inf outside the k likeliest and outside the nucleus.

    The nucleus is the smallest set of likeliest tokens whose mass reaches p (Holtzman
    et al. 2020), counted among the k likeliest. Of equally likely tokens the first go
    first.

    Args:
      logits_BV: float32.
      temperature: above 0.
      top_k: k; 0 for all.
      top_p: p, in (0, 1].

    Raises:
      ValueError: temperature ≤ 0 (use `greedy`), top_k < 0, or top_p not in (0, 1].
    """
    if not (temperature > 0 and top_k >= 0 and 0 < top_p <= 1):
        raise ValueError(
            'sampling needs temperature > 0, top_k ≥ 0 and 0 < top_p ≤ 1, not '
            f'{temperature}, {top_k} and {top_p}'
        )
    logits_BV = logits_BV / temperature
    vocab_size = logits_BV.shape[-1]
    if top_k == 0 and top_p == 1:
        return logits_BV
    order_BV = jnp.argsort(-logits_BV, axis=-1)
    keep_V = jnp.arange(vocab_size) < (top_k or vocab_size)
    keep_BV = jnp.broadcast_to(keep_V[None], logits_BV.shape)
    if top_p < 1:
        sorted_BV = jnp.take_along_axis(logits_BV, order_BV, -1)
        p_BV = jax.nn.softmax(jnp.where(keep_BV, sorted_BV, -jnp.inf), -1)
        # A token is in if the mass before it is below p; the likeliest always is.
        mass_before_BV = jnp.cumsum(p_BV, -1) - p_BV
        keep_BV &= mass_before_BV < top_p
    keep_BV = jnp.put_along_axis(keep_BV, order_BV, keep_BV, -1, inplace=False)
    return jnp.where(keep_BV, logits_BV, -jnp.inf)


def _flat(x_BNV: jax.Array) -> jax.Array:
    """All continuations of a sentence in one row."""
    return x_BNV.reshape(len(x_BNV), -1)

"""The k largest values of each row."""

import jax
import jax.numpy as jnp

from flaxformer_lite.ops.choose import choose

BLOCK = 64


def top_k_indices(x_BV: jax.Array, k: int) -> jax.Array:
    """Returns indices of the k largest values per row, in descending order: int32 Bk.

    Equal values keep the order of the row; −0 equals 0.

    Examples:
      >>> top_k_indices(jnp.array([[1.0, 5.0, 3.0, 5.0]]), k=3).tolist()
      [[1, 3, 2]]
    """
    # `jax.lax.top_k` ranks −0 below 0.
    x_BV = jnp.where(x_BV == 0, 0.0, x_BV)
    chosen = choose(
        lambda x_BV: reference(x_BV, k), lambda x_BV: tuned(x_BV, k), only_on='cpu'
    )
    return chosen(x_BV)


def reference(x_BV: jax.Array, k: int) -> jax.Array:
    """Returns the indices with `jax.lax.top_k`."""
    return jax.lax.top_k(x_BV, k)[1]


def tuned(x_BV: jax.Array, k: int, block: int = BLOCK) -> jax.Array:
    """Sorts only part of each row; `jax.lax.top_k` on CPU sorts all of it.

    The k largest values lie in the k blocks with the largest maxima, or in the
    remainder after the last whole block.
    """
    batch, size = x_BV.shape
    blocks = size // block
    if blocks < 2 * k:
        return reference(x_BV, k)
    whole = blocks * block
    whole_BCV = x_BV[:, :whole].reshape(batch, blocks, block)
    rest_BV = x_BV[:, whole:]

    # 1. Find the k blocks with the largest maxima, in the order of the row, so that
    # equal values keep their order.
    block_maxima_BC = whole_BCV.max(-1)
    best_Bk = reference(block_maxima_BC, k)
    best_Bk = jnp.sort(best_Bk, -1)
    # 2. Collect their values and the remainder as candidates.
    best_BkV = jnp.take_along_axis(whole_BCV, best_Bk[..., None], 1)
    best_BV = best_BkV.reshape(batch, -1)
    candidates_BV = jnp.concatenate([best_BV, rest_BV], 1)
    # 3. Find the k largest candidates and their blocks; the remainder counts as the
    # last one.
    candidate_Bk = reference(candidates_BV, k)
    block_of_candidate = jnp.pad(best_Bk, ((0, 0), (0, 1)), constant_values=blocks)
    block_Bk = jnp.take_along_axis(block_of_candidate, candidate_Bk // block, 1)
    # 4. Convert back to indices into the row.
    return block_Bk * block + candidate_Bk % block

"""A digest of each array, computed where the array is and without moving it.

The bits of an array's elements are words w₀, w₁, …, in the order of its rows, and the
digest is

    Σᵢ mix(wᵢ + mix(i))  mod 2³²,

where `mix` maps 32-bit integers one to one, and each bit of the result depends on each
bit that is given. Integers add up to the same in any order, so that the digest does not
depend on how devices and processes divide the array. If one element changes, in
whatever bits, so does the digest; of other changes one in 2³² goes unnoticed. Weights
instead, Σᵢ (2i + 1) wᵢ, would not see that x and −x have changed places.

Source of `mix`: Wellons 2018, "Prospecting for Hash Functions" (lowbias32).
"""

import math
from typing import Any

import jax
import jax.numpy as jnp


def leaves_by_path(tree: Any) -> dict[str, Any]:
    """Path → leaf of a tree: `{'params/norm/bias': …}`."""
    leaves = {}
    for path, leaf in jax.tree.leaves_with_path(tree):
        leaves[jax.tree_util.keystr(path, simple=True, separator='/')] = leaf
    return leaves


def array_kinds(tree: Any) -> dict[str, str]:
    """Path → dtype and shape of each leaf: `{'params/norm/bias': 'float32[512]'}`."""
    leaves = leaves_by_path(tree)
    return {path: f'{x.dtype}{list(x.shape)}' for path, x in leaves.items()}


def array_facts(tree: Any) -> dict[str, str]:
    """Path → dtype, shape and digest of each array: `'float32[512] 1a2b3c4d'`.

    Where processes share the arrays, all have to call it, and all get the same.
    """
    facts = array_kinds(tree)
    for path, leaf in leaves_by_path(tree).items():
        # One by one: a CPU's program holds the words of a leaf before it adds them up.
        facts[path] += f' {int(_digest(leaf)):08x}'
    return facts


@jax.jit
def _digest(x: jax.Array) -> jax.Array:
    words = _words(x)
    return jnp.sum(_mix(words + _mix(_positions(words.shape))), dtype=jnp.uint32)


def _words(x: jax.Array) -> jax.Array:
    """The bits of each element of an array as a uint32."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    if x.dtype == jnp.bool_:
        x = x.astype(jnp.uint8)
    word = jnp.dtype(f'uint{8 * x.dtype.itemsize}')
    return jax.lax.bitcast_convert_type(x, word).astype(jnp.uint32)


def _positions(shape: tuple[int, ...]) -> jax.Array:
    """The number of each element, row by row, mod 2³².

    Not a range that is reshaped: of a divided array that would gather all parts.
    """
    positions = jnp.zeros(shape, jnp.uint32)
    for axis in range(len(shape)):
        stride = jnp.uint32(math.prod(shape[axis + 1 :]) % 2**32)
        positions += jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * stride
    return positions


def _mix(x: jax.Array) -> jax.Array:
    x ^= x >> 16
    x *= jnp.uint32(0x7FEB352D)
    x ^= x >> 15
    x *= jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)

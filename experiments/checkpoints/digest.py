"""A digest of each array, computed in place on its devices.

The bits of an array's elements are words w₀, w₁, … in row-major order. The digest is

    Σᵢ mix(wᵢ + mix(i))  mod 2³²,

where `mix` is a bijection of 32-bit integers. The digest doesn't depend on the
sharding, since integer addition is associative. It detects any change of one element,
and others with probability 1 − 2⁻³².
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from flaxformer_lite.ops.random_bits import mix


def leaves_by_path(tree: Any) -> dict[str, Any]:
    """Returns the leaves of a tree by path: `{'params/norm/bias': …}`."""
    leaves = {}
    for path, leaf in jax.tree.leaves_with_path(tree):
        leaves[jax.tree_util.keystr(path, simple=True, separator='/')] = leaf
    return leaves


def array_kinds(tree: Any) -> dict[str, str]:
    """Returns dtype and shape by path: `{'params/norm/bias': 'float32[512]'}`."""
    leaves = leaves_by_path(tree)
    return {path: f'{x.dtype}{list(x.shape)}' for path, x in leaves.items()}


def array_facts(tree: Any) -> dict[str, str]:
    """Returns dtype, shape and digest by path: `'float32[512] 1a2b3c4d'`.

    All processes that share the arrays must call it.
    """
    facts = array_kinds(tree)
    for path, leaf in leaves_by_path(tree).items():
        # One leaf at a time, because on a CPU the words of a leaf are materialized.
        facts[path] += f' {int(_digest(leaf)):08x}'
    return facts


@jax.jit
def _digest(x: jax.Array) -> jax.Array:
    words = _words(x)
    return jnp.sum(mix(words + mix(_positions(words.shape))), dtype=jnp.uint32)


def _words(x: jax.Array) -> jax.Array:
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    if x.dtype == jnp.bool_:
        x = x.astype(jnp.uint8)
    word = jnp.dtype(f'uint{8 * x.dtype.itemsize}')
    return jax.lax.bitcast_convert_type(x, word).astype(jnp.uint32)


def _positions(shape: tuple[int, ...]) -> jax.Array:
    """Returns the row-major index of each element, mod 2³².

    A reshaped range would gather all shards of a sharded array.
    """
    positions = jnp.zeros(shape, jnp.uint32)
    for axis in range(len(shape)):
        stride = jnp.uint32(math.prod(shape[axis + 1 :]) % 2**32)
        positions += jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * stride
    return positions

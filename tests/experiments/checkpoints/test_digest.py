"""Tests of digests of arrays: their definition, and independence of sharding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from experiments.checkpoints import digest

DTYPES = ('float32', 'bfloat16', 'float16', 'int32', 'int8', 'uint8', 'bool')
SPECS = (
    *(PartitionSpec(), PartitionSpec('a'), PartitionSpec(None, 'b')),
    *(PartitionSpec('b', 'a'), PartitionSpec(('a', 'b'))),
)


def array(dtype, shape=(8, 12), seed=0):
    """Returns random bits of a dtype, including NaN and subnormal numbers."""
    dtype = np.dtype(jnp.dtype(dtype))
    rng = np.random.default_rng(seed)
    if dtype.kind == 'b':
        return rng.integers(2, size=shape).astype(dtype)
    raw = rng.bytes(dtype.itemsize * np.prod(shape, dtype=int))
    return np.frombuffer(raw, dtype).reshape(shape).copy()


def digest_of(x):
    return digest.array_facts({'x': jnp.asarray(x)})['x'].rpartition(' ')[2]


def mix(x):
    x ^= x >> 16
    x = x * 0x7FEB352D % 2**32
    x ^= x >> 15
    x = x * 0x846CA68B % 2**32
    return x ^ x >> 16


@pytest.mark.parametrize('dtype', DTYPES)
def test_digest_matches_its_definition(dtype):
    x = array(dtype, (3, 5, 2))
    size = x.dtype.itemsize
    words = [
        int.from_bytes(x.tobytes()[i : i + size], 'little')
        for i in range(0, x.nbytes, size)
    ]
    total = sum(mix((word + mix(i)) % 2**32) for i, word in enumerate(words))
    assert digest_of(x) == f'{total % 2**32:08x}'


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'bool'])
def test_digest_does_not_depend_on_the_mesh(dtype):
    x = array(dtype)
    digests = {digest_of(x)}
    for sizes in ((2, 2), (4, 1)):
        mesh = jax.make_mesh(sizes, ('a', 'b'), axis_types=(AxisType.Auto,) * 2)
        for spec in SPECS:
            digests.add(digest_of(jax.device_put(x, NamedSharding(mesh, spec))))
    assert len(digests) == 1


def test_scalars_and_random_keys_have_digests():
    assert digest_of(jnp.int32(7)) != digest_of(jnp.int32(8))
    assert digest_of(jax.random.key(7)) != digest_of(jax.random.key(8))
    for impl in ('threefry2x32', 'unsafe_rbg'):
        key = jax.random.key(7, impl=impl)
        assert digest_of(key) == digest_of(jax.random.key_data(key))

"""Tests that digests detect every change of an array, but not of its sharding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from draws import SEED
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from experiments.checkpoints import digest
from experiments.checkpoints.checkpoints import average

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


def of(x):
    return digest.array_facts({'x': x})['x'].rpartition(' ')[2]


def mixed(x):
    x ^= x >> 16
    x = x * 0x7FEB352D % 2**32
    x ^= x >> 15
    x = x * 0x846CA68B % 2**32
    return x ^ x >> 16


@pytest.mark.parametrize('dtype', DTYPES)
def test_a_digest_is_the_sum_that_its_definition_says(dtype):
    x = array(dtype, (3, 5, 2))
    size = x.dtype.itemsize
    words = [
        int.from_bytes(x.tobytes()[i : i + size], 'little')
        for i in range(0, x.nbytes, size)
    ]
    total = sum(mixed((word + mixed(i)) % 2**32) for i, word in enumerate(words))
    assert of(jnp.asarray(x)) == f'{total % 2**32:08x}'


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'bool'])
def test_a_digest_is_the_same_on_every_mesh(dtype):
    x = array(dtype)
    digests = {of(jnp.asarray(x))}
    for sizes in ((2, 2), (4, 1)):
        mesh = jax.make_mesh(sizes, ('a', 'b'), axis_types=(AxisType.Auto,) * 2)
        for spec in SPECS:
            digests.add(of(jax.device_put(x, NamedSharding(mesh, spec))))
    assert len(digests) == 1


@pytest.mark.parametrize('dtype', [dtype for dtype in DTYPES if dtype != 'bool'])
def test_every_bit_that_flips_changes_the_digest(dtype):
    x = array(dtype)
    before = of(jnp.asarray(x))
    bits = np.random.default_rng(SEED).choice(8 * x.nbytes, 40, replace=False)
    for bit in map(int, bits):
        data = bytearray(x.tobytes())
        data[bit // 8] ^= 1 << bit % 8
        flipped = np.frombuffer(data, x.dtype).reshape(x.shape)
        assert of(jnp.asarray(flipped)) != before, bit


def test_elements_that_change_places_change_the_digest():
    x = array('float32')
    x[0, 0], x[5, 3] = 1.5, -1.5  # a sum with weights would not see these
    for one, other in [((0, 0), (5, 3)), ((0, 1), (0, 2)), ((1, 7), (2, 7))]:
        swapped = x.copy()
        swapped[one], swapped[other] = x[other], x[one]
        assert of(jnp.asarray(swapped)) != of(jnp.asarray(x))
    assert of(jnp.asarray(x.T)) != of(jnp.asarray(x))


def test_scalars_and_random_keys_have_digests():
    assert of(jnp.int32(7)) != of(jnp.int32(8))
    assert of(jax.random.key(7)) != of(jax.random.key(8))
    for impl in ('threefry2x32', 'unsafe_rbg'):
        key = jax.random.key(7, impl=impl)
        assert of(key) == of(jax.random.key_data(key))


def tree(seed, **shardings):
    rng = np.random.default_rng(seed)
    leaves = {
        'kernel': rng.normal(size=(8, 12)).astype(np.float32),
        'bias': (1000 * rng.normal(size=12)).astype(np.float32),
    }
    return {
        name: jax.device_put(leaf, shardings.get(name)) for name, leaf in leaves.items()
    }


def test_the_mean_is_numpys_in_float64():
    trees = [tree(seed) for seed in range(7)]
    found = average(trees)
    for name in found:
        leaves = [np.float64(tree[name]) for tree in trees]
        np.testing.assert_array_equal(found[name], np.float32(np.mean(leaves, axis=0)))


def test_the_mean_on_a_mesh_is_that_of_one_device_and_stays_there():
    mesh = jax.make_mesh((2, 2), ('a', 'b'), axis_types=(AxisType.Auto,) * 2)
    where = {
        'kernel': NamedSharding(mesh, PartitionSpec('b', 'a')),
        'bias': NamedSharding(mesh, PartitionSpec('a')),
    }
    found = average(tree(seed, **where) for seed in range(5))
    alone = average(tree(seed) for seed in range(5))
    for name in found:
        assert found[name].sharding == where[name]
        np.testing.assert_array_equal(found[name], alone[name])

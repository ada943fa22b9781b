"""Tests of the cache of keys and values."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from test_attention import keys_values

from flaxformer_lite.generation import DecodingOptions, as_strategy, decode_rows
from flaxformer_lite.kv_cache import BeamState, Cache, with_float32_slots
from flaxformer_lite.training.train_step import init_variables


@pytest.mark.parametrize('are_float32', [False, True])
def test_bfloat16_cache_returns_the_appended_values(are_float32):
    def tokens(number, seed):
        shape = 2, number, 3, 4
        arrays = (tiny.normal(*shape, seed=seed + i) for i in range(2))
        return keys_values(*arrays, dtype=jnp.bfloat16)

    prefix, new = tokens(2, seed=0), tokens(1, seed=2)
    step = jnp.int32(1)
    beam = BeamState(step, jnp.zeros((2, 1), jnp.int32), jnp.ones((2, 1, 3), bool))
    cache = Cache.starting_with(prefix)
    if are_float32:
        cache = with_float32_slots(cache)
    cache = cache.allocate(1, 3)
    cache, everything = jax.jit(Cache.append)(cache, new, beam)
    assert everything.key_BGKS.dtype == (jnp.float32 if are_float32 else jnp.bfloat16)
    leaves = map(jax.tree.leaves, (everything, prefix, new))
    for found, first, own in zip(*leaves, strict=True):
        np.testing.assert_array_equal(found[..., :2], first)
        np.testing.assert_array_equal(found[..., 3:4], own)
        assert not found[..., 2].any() and not found[..., 4].any()


@pytest.mark.slow
def test_search_with_float32_slots_finds_the_same_targets():
    model = tiny.model(dtype='bfloat16', num_layers=1, architecture='decoder_only')
    init = jax.jit(functools.partial(init_variables, model))
    source_BS = jnp.arange(3, 13, dtype=jnp.int32).reshape(2, 5)
    key = jax.random.key(0)
    given = init(key), key, source_BS, jnp.array([8, 8]), jnp.arange(2)

    def search(are_float32):
        options = DecodingOptions(
            as_strategy('beam(beams=3)'),
            processors=(),
            length=8,
            special_tokens=model.special_tokens,
            float32_cache=are_float32,
        )
        return jax.jit(functools.partial(decode_rows, model, options))(*given)

    found, expected = search(True), search(False)
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)

"""Tests of linear maps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import apply, float64, normal32, variables

from flaxformer_lite.layers.dense.base import Dense


def test_dense_maps_trailing_axes_to_new_ones():
    x = normal32(2, 5, 3, 4)
    dense = Dense((6, 7), input_axes=2)
    p = variables(dense, x)
    w, b = float64(p['params']['kernel']), float64(p['params']['bias'])
    assert w.shape == (3, 4, 6, 7) and b.shape == (6, 7)
    expected = np.einsum('btij,ijkl->btkl', float64(x), w) + b
    np.testing.assert_allclose(apply(dense, p, x), expected, atol=1e-5)


@pytest.mark.parametrize(('features', 'input_axes'), [((40, 30), 1), ((30,), 2)])
def test_initial_weights_are_xavier_uniform_over_all_axes(features, input_axes):
    x = jnp.zeros((1, 10, 20))
    p = jax.jit(Dense(features, input_axes).init)(jax.random.key(0), x)['params']
    fan_in = int(np.prod(x.shape[-input_axes:]))
    fan_out = int(np.prod(features))
    bound = np.sqrt(6 / (fan_in + fan_out))
    w = np.asarray(p['kernel'])
    assert 0.99 * bound < np.abs(w).max() <= bound
    np.testing.assert_allclose(w.std(), bound / np.sqrt(3), rtol=0.05)
    np.testing.assert_array_equal(p['bias'], 0.0)

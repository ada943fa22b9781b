"""Tests of norms against formulas and `flax.linen`; statistics exclude padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import linen as nn
from tiny import apply, float64, variables

from flaxformer_lite.config import variants
from flaxformer_lite.masks import padding_known
from flaxformer_lite.norms.batch import BatchNorm
from flaxformer_lite.norms.layer import LayerNorm
from flaxformer_lite.norms.rms import RMSNorm

X = 3.0 + 2.0 * tiny.normal(2, 3, 8)


def mean(x):
    return x.mean(-1, keepdims=True)


def layer(p, x, epsilon):
    centered = x - mean(x)
    return centered / np.sqrt(mean(centered**2) + epsilon) * p['scale'] + p['bias']


def rms(p, x, epsilon, offset=0.0):
    return x / np.sqrt(mean(x**2) + epsilon) * (offset + p['scale'])


def scale(p, x):
    return p['scale'] * x / np.linalg.norm(x, axis=-1, keepdims=True)


# The inputs of norms with a large ε are small, so that ε counts.
REFERENCE_FORMULAS = {
    'layer': lambda p, x: layer(p, x, 1e-6),
    'layer(epsilon=0.1)': lambda p, x: layer(p, 0.1 * x, 0.1),
    'rms': lambda p, x: rms(p, x, 1e-6),
    'rms(epsilon=0.1)': lambda p, x: rms(p, 0.1 * x, 0.1),
    'rms(offset=1.0)': lambda p, x: rms(p, x, 1e-6, offset=1.0),  # as in Gemma
    'scale': scale,
    'dynamic_tanh': lambda p, x: np.tanh(p['alpha'] * x) * p['scale'] + p['bias'],
    'identity': lambda p, x: x,
    # Outside of training, by running statistics.
    'batch(epsilon=0.1)': lambda p, x: (
        (0.1 * x - p['mean']) / np.sqrt(p['variance'] + 0.1) * p['scale'] + p['bias']
    ),
}


@pytest.mark.parametrize('text', REFERENCE_FORMULAS)
def test_norm_equals_its_reference_formula(text):
    norm = variants.make('norm', text)
    x = jnp.asarray(0.1 * X if 'epsilon' in text else X)
    p = variables(norm, x)
    weights = float64(p.get('params', {}) | p.get('batch_stats', {}))
    expected = REFERENCE_FORMULAS[text](weights, X)
    np.testing.assert_allclose(apply(norm, p, x), expected, atol=1e-5)


def test_every_norm_has_a_reference_formula():
    names = {text.split('(')[0] for text in REFERENCE_FORMULAS}
    assert set(variants.names('norm')) == names


def test_initial_gains_keep_the_length_of_scale_and_offset_rms_norms():
    x = jnp.asarray(X, jnp.float32)
    found, expected = (
        norm.init_with_output(jax.random.key(0), x)[0]
        for norm in (RMSNorm(offset=1.0), RMSNorm())
    )
    np.testing.assert_array_equal(found, expected)
    p = variants.make('norm', 'scale').init(jax.random.key(0), x)
    np.testing.assert_allclose(p['params']['scale'], np.sqrt(8), rtol=1e-6)


@pytest.mark.parametrize('norm', [LayerNorm(), RMSNorm()])
def test_statistics_of_bfloat16_inputs_are_float32(norm):
    x = jnp.asarray(X, jnp.bfloat16)
    p = variables(norm, x)
    y = apply(norm, p, x)
    assert y.dtype == jnp.float32
    np.testing.assert_array_equal(y, apply(norm, p, x.astype(jnp.float32)))


def test_layer_norm_is_exact_far_from_zero():
    x = np.float32([[[4096.0, 4096.5, 4097.0, 4097.5]]])
    p = {'params': {'scale': jnp.ones(4), 'bias': jnp.zeros(4)}}
    expected = np.array([-3, -1, 1, 3]) / np.sqrt(5)
    np.testing.assert_allclose(apply(LayerNorm(), p, x)[0, 0], expected, atol=1e-4)


@jax.jit
def train_batch_norm(x, valid, p):
    with padding_known(valid):
        return BatchNorm().apply(p, x, mutable=['batch_stats'])


def test_batch_norm_equals_that_of_flax_and_excludes_padding():
    x = jnp.asarray(X, jnp.float32)
    valid = jnp.asarray([[True, True, False], [True, False, False]])
    p = variables(BatchNorm(), x)
    stats = p['batch_stats']
    flax_stats = {'mean': stats['mean'], 'var': stats['variance']}
    expected, expected_stats = nn.BatchNorm(use_running_average=False).apply(
        {'params': p['params'], 'batch_stats': flax_stats},
        x,
        mask=valid[..., None],
        mutable=['batch_stats'],
    )
    y, found = train_batch_norm(x, valid, p)
    np.testing.assert_allclose(y[valid], expected[valid], atol=1e-5)
    for name, flax_name in (('mean', 'mean'), ('variance', 'var')):
        statistic = expected_stats['batch_stats'][flax_name]
        np.testing.assert_allclose(found['batch_stats'][name], statistic, atol=1e-6)
    other = jnp.where(valid[..., None], x, 99.0)
    same, again = train_batch_norm(other, valid, p)
    np.testing.assert_array_equal(same[valid], y[valid])
    tiny.assert_equal(again, found)
    # Padding alone leaves running statistics unchanged.
    _, found = train_batch_norm(x, jnp.zeros((2, 3), bool), p)
    tiny.assert_equal(found['batch_stats'], stats)

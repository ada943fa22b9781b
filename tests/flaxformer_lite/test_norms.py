"""Tests of norms against formulas and `flax.linen`; statistics exclude padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from tiny import apply, float64, variables

from flaxformer_lite.masks import padding_known
from flaxformer_lite.norms.batch import BatchNorm
from flaxformer_lite.norms.dynamic_tanh import DynamicTanh
from flaxformer_lite.norms.layer import LayerNorm
from flaxformer_lite.norms.rms import RMSNorm
from flaxformer_lite.norms.scale import ScaleNorm

X = np.random.default_rng(0).normal(3.0, 2.0, (2, 3, 8))


def test_layer_norm_is_its_formula_with_epsilon_inside_the_root():
    norm = LayerNorm(epsilon=0.1)
    p = variables(norm, jnp.zeros((1, 1, 8)))
    small = X * 0.1  # so that ε counts
    mean = small.mean(-1, keepdims=True)
    biased = ((small - mean) ** 2).sum(-1, keepdims=True) / 8
    scale, bias = float64(p['params']['scale']), float64(p['params']['bias'])
    expected = (small - mean) / np.sqrt(biased + 0.1) * scale + bias
    np.testing.assert_allclose(apply(norm, p, jnp.asarray(small)), expected, atol=1e-5)


def test_rms_norm_is_its_formula_with_epsilon_inside_the_root():
    norm = RMSNorm(epsilon=0.1)
    p = variables(norm, jnp.zeros((1, 1, 8)))
    small = X * 0.1
    scale = float64(p['params']['scale'])
    expected = small / np.sqrt((small**2).sum(-1, keepdims=True) / 8 + 0.1) * scale
    np.testing.assert_allclose(apply(norm, p, jnp.asarray(small)), expected, atol=1e-5)


def test_rms_norm_with_an_offset_has_gemmas_gain_and_begins_without_one():
    norm, x = RMSNorm(offset=1.0), jnp.asarray(X, jnp.float32)
    first, plain = (
        each.init_with_output(jax.random.key(0), x)[0] for each in (norm, RMSNorm())
    )
    np.testing.assert_array_equal(first, plain)
    p = variables(norm, x)
    gain = 1 + float64(p['params']['scale'])
    expected = X / np.sqrt((X**2).mean(-1, keepdims=True) + 1e-6) * gain
    np.testing.assert_allclose(apply(norm, p, x), expected, atol=1e-5)


def test_scale_norm_has_one_gain_and_its_length():
    norm = ScaleNorm()
    p = variables(norm, jnp.zeros((1, 1, 8)))
    gain = float64(p['params']['scale'])
    expected = gain * X / np.sqrt((X**2).sum(-1, keepdims=True))
    np.testing.assert_allclose(apply(norm, p, jnp.asarray(X)), expected, atol=1e-5)
    first = jax.jit(norm.init)(jax.random.key(0), jnp.zeros((1, 1, 8)))
    np.testing.assert_allclose(first['params']['scale'], np.sqrt(8), rtol=1e-6)


def test_dynamic_tanh_is_its_formula():
    norm = DynamicTanh()
    p = variables(norm, jnp.zeros((1, 1, 8)))
    alpha, scale, bias = (float64(p['params'][k]) for k in ('alpha', 'scale', 'bias'))
    expected = np.tanh(alpha * X) * scale + bias
    np.testing.assert_allclose(apply(norm, p, jnp.asarray(X)), expected, atol=1e-5)


@pytest.mark.parametrize('norm', [LayerNorm(), RMSNorm()])
def test_statistics_are_float32_for_bfloat16_inputs(norm):
    x = jnp.asarray(X, jnp.bfloat16)
    p = variables(norm, x)
    y = apply(norm, p, x)
    assert y.dtype == jnp.float32
    np.testing.assert_array_equal(y, apply(norm, p, x.astype(jnp.float32)))


def test_layer_norm_keeps_its_precision_far_from_zero():
    x = np.float32([[[4096.0, 4096.5, 4097.0, 4097.5]]])
    norm = LayerNorm()
    y = apply(norm, {'params': {'scale': jnp.ones(4), 'bias': jnp.zeros(4)}}, x)
    np.testing.assert_allclose(
        y[0, 0], np.array([-3, -1, 1, 3]) / np.sqrt(5), atol=1e-4
    )


def train(norm, x, valid, p):
    with padding_known(valid):
        return norm.apply(p, x, mutable=['batch_stats'])


def test_batch_norm_equals_linens_and_leaves_padding_out():
    x = jnp.asarray(X, jnp.float32)
    valid = jnp.asarray([[True, True, False], [True, False, False]])
    ours, linen = BatchNorm(), nn.BatchNorm(use_running_average=False)
    p = variables(ours, x)
    theirs = {
        'params': p['params'],
        'batch_stats': {
            'mean': p['batch_stats']['mean'],
            'var': p['batch_stats']['variance'],
        },
    }
    y, found = train(ours, x, valid, p)
    y_linen, stats = linen.apply(
        theirs, x, mask=valid[..., None], mutable=['batch_stats']
    )
    np.testing.assert_allclose(y[valid], y_linen[valid], atol=1e-5)
    for name, theirs in (('mean', 'mean'), ('variance', 'var')):
        expected = stats['batch_stats'][theirs]
        np.testing.assert_allclose(found['batch_stats'][name], expected, atol=1e-6)
    # Whatever stands at padding.
    other = jnp.where(valid[..., None], x, 99.0)
    same, again = train(ours, other, valid, p)
    np.testing.assert_array_equal(same[valid], y[valid])
    jax.tree.map(np.testing.assert_array_equal, again, found)


def test_batch_norm_learns_nothing_of_padding_alone():
    x, norm = jnp.asarray(X, jnp.float32), BatchNorm()
    p = variables(norm, x)
    _, found = train(norm, x, jnp.zeros((2, 3), bool), p)
    jax.tree.map(np.testing.assert_array_equal, found['batch_stats'], p['batch_stats'])


def test_batch_norm_that_is_not_training_is_of_its_running_means():
    norm = BatchNorm(epsilon=0.1)
    p = variables(norm, jnp.zeros((1, 1, 8)))
    mean, variance = (float64(p['batch_stats'][k]) for k in ('mean', 'variance'))
    scale, bias = (float64(p['params'][k]) for k in ('scale', 'bias'))
    expected = (X - mean) / np.sqrt(variance + 0.1) * scale + bias
    np.testing.assert_allclose(apply(norm, p, jnp.asarray(X)), expected, atol=1e-5)

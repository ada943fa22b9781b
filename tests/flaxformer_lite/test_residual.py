"""Tests of residual connections: the place of the norm, and dropout."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import linen as nn
from tiny import apply, float64, normal, normal32, variables

from flaxformer_lite.config import variants
from flaxformer_lite.layer_scope import LayerScope, running_layer
from flaxformer_lite.layers.dropout import Dropout
from flaxformer_lite.norms.identity import Identity
from flaxformer_lite.sizes import Sizes
from flaxformer_lite.training.batch import source_and_inputs
from flaxformer_lite.training.train_step import init_variables

X, Y = normal32(2, 3, 8), normal32(2, 3, 8, seed=1)


class Tenfold(nn.Module):
    """A stub of a norm that shows where it was applied."""

    def __call__(self, x):
        return 10 * x


def build(spec, norm=None, dropout=0.0, **sizes):
    defaults = dict(role='encoder', encoder_layers=2, decoder_layers=3)
    parts = dict(norm=norm or Tenfold(), dropout=Dropout(dropout))
    return variants.make('residual', spec, sizes=Sizes(**defaults | sizes), **parts)


def unchanged(p):
    return X


def normed(p):
    return 10 * X


# Input of the sublayer, result, and norm after the last layer, by the parameters.
FORMULAS = {
    'none': (unchanged, lambda p: Y, unchanged),
    'post_norm': (unchanged, lambda p: 10 * (X + Y), unchanged),
    'post_norm(final=True)': (unchanged, lambda p: 10 * (X + Y), normed),
    'pre_norm': (normed, lambda p: X + Y, normed),
    'sandwich': (normed, lambda p: X + 10 * Y, normed),
    'rezero': (unchanged, lambda p: X + p['alpha'] * Y, unchanged),
    'layer_scale': (normed, lambda p: X + p['gamma'] * Y, normed),
    'ngpt(step=0.5)': (
        unchanged,
        lambda p: 10 * (X + 0.5 * 8**0.5 * abs(p['alpha']) * (10 * Y - X)),
        unchanged,
    ),
    'deepnorm': (unchanged, lambda p: 10 * (0.81 * 48 ** (1 / 16) * X + Y), unchanged),
}


@pytest.mark.parametrize('spec', FORMULAS)
def test_residual_connection_equals_its_formula(spec):
    residual = build(spec)
    p = variables(residual, X, Y, method='after')
    weights = p.get('params', {})
    methods = ('before', (X,)), ('after', (X, Y)), ('final_norm', (X,))
    for (method, arguments), formula in zip(methods, FORMULAS[spec], strict=True):
        found = apply(residual, p, *arguments, method=method)
        with jax.numpy_rank_promotion('allow'):
            np.testing.assert_allclose(found, formula(weights), rtol=1e-6)


def test_gates_start_at_or_near_zero():
    for spec, name, value in (('rezero', 'alpha', 0), ('layer_scale', 'gamma', 0.1)):
        p = build(spec).init(jax.random.key(0), X, Y, method='after')['params']
        expected = np.full(p[name].shape, value)
        np.testing.assert_allclose(p[name], expected, rtol=1e-6)


def sublayer(residual, x, y):
    """Calls both methods, which creates all parameters."""
    return residual.before(x), residual.after(x, y)


@pytest.mark.ci
@pytest.mark.parametrize('name', variants.names('residual'))
def test_dropout_applies_to_the_branch_and_not_to_the_stream(name):
    residual = build(name, Identity(), dropout=0.5)
    x = apply(residual, {}, X, method='initial_stream')
    p = variables(residual, x, Y, method=sublayer)

    def run(y, **rngs):
        return apply(residual, p, x, y, method=sublayer, **rngs)

    rngs = {'rngs': {'dropout': jax.random.key(0)}}
    bare = run(jnp.zeros_like(Y))
    # Without a branch nothing is dropped; with one, some elements are as without it.
    tiny.assert_equal(run(jnp.zeros_like(Y), **rngs), bare)
    _, found = run(Y, **rngs)
    assert 0.2 < np.isclose(found, bare[1], atol=1e-6).mean() < 0.8


H = normal(3, *X.shape, seed=2)


def run_streams(name, layer):
    """Returns a sublayer's input, the new streams NBTD, and the parameters, float64."""
    residual = build(name)
    x_BTE = jnp.concatenate(list(jnp.float32(H)), -1)
    p = variables(residual, x_BTE, Y, method=sublayer)
    with running_layer(LayerScope(index=layer)):
        read_BTD, new_BTE = residual.apply(p, x_BTE, Y, method=sublayer)
    new_NBTD = np.stack(np.split(np.float64(new_BTE), len(H), axis=-1))
    return np.float64(read_BTD), new_NBTD, float64(p['params'])


@pytest.mark.parametrize('dynamic', [False, True])
def test_hyper_connections_equal_the_matrix_of_each_token(dynamic):
    """Zhu et al. 2024: equation 2 for static and 10 to 13 for dynamic weights."""
    read, new, weights = run_streams(f'hyper(streams=3, dynamic={dynamic})', 7)
    for token in np.ndindex(*X.shape[:2]):
        h = H[:, *token]
        a = np.eye(3)[:, 7 % 3, None] + weights['alpha']['static'][:, :1]
        a_r = np.eye(3) + weights['alpha']['static'][:, 1:]
        b = 1 + weights['beta']['static'].T
        if dynamic:
            normed = h - h.mean(-1, keepdims=True)
            normed /= np.sqrt(np.square(normed).mean(-1, keepdims=True) + 1e-5)
            alpha, beta = weights['alpha'], weights['beta']
            rows = alpha['scale'] * np.tanh(normed @ alpha['kernel'])
            a, a_r = a + rows[:, :1], a_r + rows[:, 1:]
            b = b + beta['scale'] * np.tanh(normed @ beta['kernel']).T
        np.testing.assert_allclose(read[token], 10 * (a.T @ h)[0], atol=2e-5)
        expected = b.T @ np.float64(Y[token])[None] + a_r.T @ h
        np.testing.assert_allclose(new[:, *token], expected, atol=1e-5)


@pytest.mark.parametrize('dynamic', [False, True])
def test_mhc_mixes_streams_by_a_doubly_stochastic_matrix(dynamic):
    """Xie et al. 2025, equations 3 and 7 to 9."""
    read, new, weights = run_streams(f'mhc(streams=3, dynamic={dynamic})', 7)
    for token in np.ndindex(*X.shape[:2]):
        h = H[:, *token]
        vector = h.reshape(-1)
        normed = vector / np.sqrt(np.square(vector).mean() + 1e-5)

        def mapped(name, normed=normed):
            w = weights[name]
            change = w['scale'] * (normed @ w['kernel']) if dynamic else 0
            return w['bias'] + change

        pre = tiny.sigmoid(mapped('pre') + [-2, 2, -2])
        post = 2 * tiny.sigmoid(mapped('post'))
        res = np.exp(mapped('res').reshape(3, 3) - 4 * (1 - np.eye(3)))
        for _ in range(20):
            res /= res.sum(0, keepdims=True)
            res /= res.sum(1, keepdims=True)
        np.testing.assert_allclose(read[token], 10 * pre @ h, atol=2e-5)
        expected = res @ h + post[:, None] * np.float64(Y[token])
        np.testing.assert_allclose(new[:, *token], expected, atol=1e-5)


@functools.cache
def initial_logits(residual):
    model = tiny.model(
        architecture='decoder_only', residual=residual, norm='rms', num_layers=1
    )
    arguments = source_and_inputs(tiny.batch([tiny.PAIRS]))

    @jax.jit
    def logits(key):
        return model.apply(init_variables(model, key), *arguments)

    return logits(jax.random.key(0))


@pytest.mark.ci
@pytest.mark.parametrize('name', ['hyper', 'mhc'])
def test_streams_start_like_pre_norm(name):
    expected = initial_logits('pre_norm')
    np.testing.assert_allclose(initial_logits(name), expected, atol=1e-4)


def test_layers_of_a_stack_need_equally_many_streams():
    with pytest.raises(ValueError, match=r'model.residual: layers have \[1, 4\] resid'):
        tiny.model(residual='[hyper, pre_norm]')
    tiny.model(residual='[hyper, mhc]', decoder__residual='pre_norm')


def unit(x):
    x = np.float64(x)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def test_ngpt_steps_from_the_stream_to_the_output_on_a_sphere():
    """h ← Norm(h + α (Norm(h_A) − h)) (Loshchilov et al. 2024, equation 10).

    Here streams are √d times those of the paper, d = 8.
    """
    norm = variants.make('norm', 'rms(learned=False, epsilon=1e-12)')
    residual = build('ngpt', norm)
    p = residual.init(jax.random.key(0), X, Y, method='after')
    h = apply(residual, p, X, method='initial_stream')
    np.testing.assert_allclose(h / 8**0.5, unit(X), atol=1e-6)
    found = apply(residual, p, h, Y, method='after')
    expected = unit(unit(X) + 0.05 * (unit(Y) - unit(X)))
    np.testing.assert_allclose(found / 8**0.5, expected, atol=1e-6)
    assert list(p['params']) == ['alpha']
    np.testing.assert_allclose(p['params']['alpha'], 8**-0.5, rtol=1e-6)

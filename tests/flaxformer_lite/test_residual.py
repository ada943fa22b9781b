"""Tests of residual connections: the place of the norm, and dropout."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import linen as nn
from tiny import apply, float64, variables

from flaxformer_lite.config import variants
from flaxformer_lite.layer_scope import LayerScope, running_layer
from flaxformer_lite.layers.dropout import Dropout
from flaxformer_lite.norms.identity import IdentityNorm
from flaxformer_lite.residual.post_norm import PostNorm
from flaxformer_lite.residual.pre_norm import PreNorm
from flaxformer_lite.sizes import Sizes
from flaxformer_lite.training.batch import source_and_inputs
from flaxformer_lite.training.train_step import init_variables

X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 8)), jnp.float32)
Y = jnp.asarray(np.random.default_rng(1).normal(size=(2, 3, 8)), jnp.float32)


class Tenfold(nn.Module):
    """A stub of a norm that shows where it was applied."""

    def __call__(self, x):
        return 10 * x


def call(residual, method, *args, **kwargs):
    return apply(residual, {}, *args, method=method, **kwargs)


def test_post_norm_is_the_papers_norm_of_the_sum():
    residual = PostNorm(Tenfold(), Dropout(0.0))
    np.testing.assert_array_equal(call(residual, 'before', X), X)
    np.testing.assert_array_equal(call(residual, 'after', X, Y), 10 * (X + Y))
    np.testing.assert_array_equal(call(residual, 'final_norm', X), X)


def test_pre_norm_is_the_norm_of_the_branch_and_of_the_end():
    residual = PreNorm(Tenfold(), Dropout(0.0))
    np.testing.assert_array_equal(call(residual, 'before', X), 10 * X)
    np.testing.assert_array_equal(call(residual, 'after', X, Y), X + Y)
    np.testing.assert_array_equal(call(residual, 'final_norm', X), 10 * X)


def made(name, **sizes):
    defaults = dict(role='encoder', encoder_layers=2, decoder_layers=3)
    parts = dict(norm=Tenfold(), dropout=Dropout(0.0), sizes=Sizes(**defaults | sizes))
    residual = variants.make('residual', name, **parts)
    return residual, variables(residual, X, Y, method='after')


@pytest.mark.parametrize(
    ('name', 'before', 'after', 'final_norm'),
    [
        (
            'post_norm(final=True)',
            lambda p: X,
            lambda p: 10 * (X + Y),
            lambda p: 10 * X,
        ),
        ('sandwich', lambda p: 10 * X, lambda p: X + 10 * Y, lambda p: 10 * X),
        ('rezero', lambda p: X, lambda p: X + p['alpha'] * Y, lambda p: X),
        (
            'layer_scale',
            lambda p: 10 * X,
            lambda p: X + p['gamma'] * Y,
            lambda p: 10 * X,
        ),
        (
            'ngpt(step=0.5)',
            lambda p: X,
            lambda p: 10 * (X + 0.5 * 8**0.5 * abs(p['alpha']) * (10 * Y - X)),
            lambda p: X,
        ),
        (
            'deepnorm',
            lambda p: X,
            lambda p: 10 * (0.81 * 48 ** (1 / 16) * X + Y),
            lambda p: X,
        ),
    ],
)
def test_is_its_formula(name, before, after, final_norm):
    residual, p = made(name)
    weights = p.get('params', {})
    for method, expected, arguments in (
        ('before', before, (X,)),
        ('after', after, (X, Y)),
        ('final_norm', final_norm, (X,)),
    ):
        found = apply(residual, p, *arguments, method=method)
        with jax.numpy_rank_promotion('allow'):
            np.testing.assert_allclose(found, expected(weights), rtol=1e-6)


@pytest.mark.parametrize(
    ('name', 'weight', 'value'), [('rezero', 'alpha', 0), ('layer_scale', 'gamma', 0.1)]
)
def test_gates_begin_closed_or_nearly(name, weight, value):
    residual, _ = made(name)
    p = residual.init(jax.random.key(0), X, Y, method='after')['params']
    np.testing.assert_allclose(p[weight], np.full(p[weight].shape, value), rtol=1e-6)


def sublayer(residual, x, y):
    """Calls both methods, which creates all parameters."""
    return residual.before(x), residual.after(x, y)


@pytest.mark.parametrize('name', variants.names('residual'))
def test_dropout_falls_on_the_branch_and_spares_the_stream(name):
    residual = variants.make(
        'residual',
        name,
        norm=IdentityNorm(),
        dropout=Dropout(0.5),
        sizes=Sizes(role='encoder', encoder_layers=2, decoder_layers=2),
    )
    x = apply(residual, {}, X, method='initial_stream')
    p = variables(residual, x, Y, method=sublayer)
    rngs = {'dropout': jax.random.key(0)}
    np.testing.assert_array_equal(
        apply(residual, p, x, method='before', rngs=rngs),
        apply(residual, p, x, method='before'),
    )

    def after(y):
        return apply(residual, p, x, y, method='after', rngs=rngs)

    # Without a branch nothing is dropped; with one, some elements are as without it.
    bare = apply(residual, p, x, jnp.zeros_like(Y), method='after')
    np.testing.assert_array_equal(after(jnp.zeros_like(Y)), bare)
    dropped = np.isclose(after(Y), bare, atol=1e-6).mean()
    assert 0.2 < dropped < 0.8


def hyper(name, layer, h_NBTD):
    """Returns a sublayer's input, the new streams NBTD, and the parameters, float64."""
    residual = variants.make(
        'residual', name, norm=Tenfold(), dropout=Dropout(0.0), sizes=Sizes()
    )
    x_BTE = jnp.concatenate(list(jnp.float32(h_NBTD)), -1)
    p = variables(residual, x_BTE, Y, method=sublayer)
    with running_layer(LayerScope(index=layer)):
        read_BTD, new_BTE = residual.apply(p, x_BTE, Y, method=sublayer)
    new_NBTD = np.stack(np.split(np.float64(new_BTE), len(h_NBTD), axis=-1))
    return np.float64(read_BTD), new_NBTD, float64(p['params'])


H = np.random.default_rng(2).normal(size=(3, *X.shape))


@pytest.mark.parametrize('dynamic', [False, True])
def test_hyper_connections_are_their_matrix_of_each_token(dynamic):
    """Zhu et al. 2024: equation 2 for static and 10 to 13 for dynamic weights."""
    spec = f'hyper(streams=3, dynamic={dynamic})'
    read, new, weights = hyper(spec, 7, H)
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
    read, new, weights = hyper(f'mhc(streams=3, dynamic={dynamic})', 7, H)
    for token in np.ndindex(*X.shape[:2]):
        h = H[:, *token]
        vector = h.reshape(-1)
        normed = vector / np.sqrt(np.square(vector).mean() + 1e-5)

        def mapped(name, normed=normed):
            w = weights[name]
            change = w['scale'] * (normed @ w['kernel']) if dynamic else 0
            return w['bias'] + change

        pre = 1 / (1 + np.exp(-(mapped('pre') + [-2, 2, -2])))
        post = 2 / (1 + np.exp(-mapped('post')))
        res = np.exp(mapped('res').reshape(3, 3) - 4 * (1 - np.eye(3)))
        for _ in range(20):
            res /= res.sum(0, keepdims=True)
            res /= res.sum(1, keepdims=True)
        np.testing.assert_allclose(read[token], 10 * pre @ h, atol=2e-5)
        expected = res @ h + post[:, None] * np.float64(Y[token])
        np.testing.assert_allclose(new[:, *token], expected, atol=1e-5)


@functools.cache
def first_logits(residual):
    model = tiny.model(
        architecture='decoder_only', residual=residual, norm='rms', num_layers=1
    )
    arguments = source_and_inputs(tiny.batch([tiny.PAIRS]))

    @jax.jit
    def logits(key):
        return model.apply(init_variables(model, key), *arguments)

    return logits(jax.random.key(0))


@pytest.mark.parametrize('name', ['hyper', 'mhc'])
def test_streams_start_as_those_of_pre_norm(name):
    np.testing.assert_allclose(first_logits(name), first_logits('pre_norm'), atol=1e-4)


def test_layers_of_a_stack_have_equally_many_streams():
    with pytest.raises(ValueError, match=r'model.residual: layers have \[1, 4\] resid'):
        tiny.model(residual='[hyper, pre_norm]')
    tiny.model(residual='[hyper, mhc]', decoder__residual='pre_norm')


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def test_ngpt_steps_from_the_stream_to_the_output_on_a_sphere():
    """h ← Norm(h + α (Norm(h_A) − h)) (Loshchilov et al. 2024, equation 10).

    Here streams are √d times those of the paper, d = 8.
    """
    norm = variants.make('norm', 'rms(learned=False, epsilon=1e-12)')
    residual = variants.make(
        'residual', 'ngpt', norm=norm, dropout=Dropout(0.0), sizes=Sizes()
    )
    p = residual.init(jax.random.key(0), X, Y, method='after')
    h = apply(residual, p, X, method='initial_stream')
    np.testing.assert_allclose(h / 8**0.5, unit(np.float64(X)), atol=1e-6)
    found = apply(residual, p, h, Y, method='after')
    h = unit(np.float64(X))
    expected = unit(h + 0.05 * (unit(np.float64(Y)) - h))
    np.testing.assert_allclose(found / 8**0.5, expected, atol=1e-6)
    assert list(p['params']) == ['alpha']
    np.testing.assert_allclose(p['params']['alpha'], 8**-0.5, rtol=1e-6)

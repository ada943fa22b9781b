"""Tests of residual connections: the place of the norm, and dropout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from tiny import apply, variables

from flaxformer_lite.config import variants
from flaxformer_lite.layers.dropout import Dropout
from flaxformer_lite.norms.identity import IdentityNorm
from flaxformer_lite.residual.post_norm import PostNorm
from flaxformer_lite.residual.pre_norm import PreNorm
from flaxformer_lite.sizes import Sizes

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


@pytest.mark.parametrize('name', variants.names('residual'))
def test_dropout_falls_on_the_branch_and_spares_the_stream(name):
    residual = variants.make(
        'residual',
        name,
        norm=IdentityNorm(),
        dropout=Dropout(0.5),
        sizes=Sizes(role='encoder', encoder_layers=2, decoder_layers=2),
    )
    p = variables(residual, X, Y, method='after')
    rngs = {'dropout': jax.random.key(0)}
    np.testing.assert_array_equal(
        apply(residual, p, X, method='before', rngs=rngs),
        apply(residual, p, X, method='before'),
    )

    def after(y):
        return apply(residual, p, X, y, method='after', rngs=rngs)

    # Without a branch nothing is dropped; with one, some elements are as without it.
    bare = apply(residual, p, X, jnp.zeros_like(Y), method='after')
    np.testing.assert_array_equal(after(jnp.zeros_like(Y)), bare)
    dropped = np.isclose(after(Y), bare, atol=1e-6).mean()
    assert 0.2 < dropped < 0.8

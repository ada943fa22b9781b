import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from tiny import apply, float64, variables

from flaxformer_lite import spec
from flaxformer_lite.dropout import Dropout
from flaxformer_lite.norms.layer import Layer
from flaxformer_lite.residual.post_norm import PostNorm
from flaxformer_lite.residual.pre_norm import PreNorm

X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 8)), jnp.float32)
Y = jnp.asarray(np.random.default_rng(1).normal(size=(2, 3, 8)), jnp.float32)


class Tenfold(nn.Module):
    """Stands for the norm and shows where it was."""

    def __call__(self, x):
        return 10 * x


def call(residual, method, *args, **kwargs):
    return apply(residual, {}, *args, method=method, **kwargs)


def test_post_norm_is_the_papers_norm_of_the_sum():
    residual = PostNorm(Tenfold(), Dropout(0.0))
    np.testing.assert_array_equal(call(residual, 'before', X), X)
    np.testing.assert_array_equal(call(residual, 'after', X, Y), 10 * (X + Y))
    np.testing.assert_array_equal(call(residual, 'finish', X), X)


def test_pre_norm_is_the_norm_of_the_branch_and_of_the_end():
    residual = PreNorm(Tenfold(), Dropout(0.0))
    np.testing.assert_array_equal(call(residual, 'before', X), 10 * X)
    np.testing.assert_array_equal(call(residual, 'after', X, Y), X + Y)
    np.testing.assert_array_equal(call(residual, 'finish', X), 10 * X)


def test_post_norm_with_layer_norm_in_float64():
    residual = PostNorm(Layer(), Dropout(0.0))
    p = variables(residual, X, Y, method='after')
    z = np.float64(X) + np.float64(Y)
    z = (z - z.mean(-1, keepdims=True)) / np.sqrt(z.var(-1, keepdims=True) + 1e-6)
    norm = float64(p['params']['norm'])
    expected = z * norm['scale'] + norm['bias']
    np.testing.assert_allclose(apply(residual, p, X, Y, method='after'), expected, atol=1e-5)


@pytest.mark.parametrize('name', spec.available('flaxformer_lite.residual'))
def test_dropout_falls_on_the_branch_and_spares_the_stream(name):
    class Identity(nn.Module):
        def __call__(self, x):
            return x

    residual = spec.make('flaxformer_lite.residual', name, norm=Identity(), dropout=Dropout(0.5))
    p = variables(residual, X, Y, method='after')
    rngs = {'dropout': jax.random.key(0)}
    np.testing.assert_array_equal(
        apply(residual, p, X, method='before', rngs=rngs), apply(residual, p, X, method='before')
    )

    def after(y):
        return apply(residual, p, X, y, method='after', rngs=rngs)

    # Without a branch nothing is dropped; with one, some elements are as if there were none.
    bare = apply(residual, p, X, jnp.zeros_like(Y), method='after')
    np.testing.assert_array_equal(after(jnp.zeros_like(Y)), bare)
    dropped = np.isclose(after(Y), bare, atol=1e-6).mean()
    assert 0.2 < dropped < 0.8

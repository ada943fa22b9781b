import math

import jax.numpy as jnp
import numpy as np
import pytest
from tiny import apply, float64, variables

from flaxformer_lite import spec

X = np.random.default_rng(0).normal(size=(2, 3, 6))


def laws(p, x):
    """Each variant's formula in float64, by its parameters."""

    def dense(name, x):
        return x @ p[name]['kernel'] + p[name].get('bias', 0.0)

    def relu():
        return dense('down', np.maximum(dense('up', x), 0))

    def gelu():
        h = dense('up', x)
        return dense('down', h * (1 + np.vectorize(math.erf)(h / math.sqrt(2))) / 2)

    def swiglu():
        gate = dense('gate', x)
        return dense('down', gate / (1 + np.exp(-gate)) * dense('up', x))

    def geglu():
        gate = dense('gate', x)
        gate = gate * (1 + np.vectorize(math.erf)(gate / math.sqrt(2))) / 2
        return dense('down', gate * dense('up', x))

    def squared_relu():
        return dense('down', np.maximum(dense('up', x), 0) ** 2)

    def linear():
        return dense('down', dense('up', x))

    return dict(
        relu=relu, gelu=gelu, swiglu=swiglu, geglu=geglu, squared_relu=squared_relu, linear=linear
    )


def run(name, x, **overrides):
    module = spec.make('flaxformer_lite.feed_forward', name, d_ff=10, **overrides)
    p = variables(module, jnp.zeros((1, 1, 6)))
    return p['params'], apply(module, p, jnp.asarray(x, jnp.float32))


@pytest.mark.parametrize('name', spec.available('flaxformer_lite.feed_forward'))
def test_is_its_formula(name):
    p, y = run(name, X)
    np.testing.assert_allclose(y, laws(float64(p), X)[name](), atol=1e-5)


@pytest.mark.parametrize(
    ('name', 'shapes'),
    [
        (
            'relu',
            {'up': {'kernel': (6, 10), 'bias': (10,)}, 'down': {'kernel': (10, 6), 'bias': (6,)}},
        ),
        (
            'gelu',
            {'up': {'kernel': (6, 10), 'bias': (10,)}, 'down': {'kernel': (10, 6), 'bias': (6,)}},
        ),
        (
            'swiglu',
            {'gate': {'kernel': (6, 10)}, 'up': {'kernel': (6, 10)}, 'down': {'kernel': (10, 6)}},
        ),
    ],
)
def test_has_the_parameters_of_its_formula(name, shapes):
    p, _ = run(name, X)
    assert {k: {n: v.shape for n, v in layer.items()} for k, layer in p.items()} == shapes


@pytest.mark.parametrize('name', spec.available('flaxformer_lite.feed_forward'))
def test_each_position_is_by_itself(name):
    changed = X.copy()
    changed[0, 1] += 1.0
    _, y = run(name, X)
    _, y_changed = run(name, changed)
    differs = np.abs(np.asarray(y - y_changed)).max(-1) > 1e-6
    np.testing.assert_array_equal(differs, [[False, True, False], [False, False, False]])


@pytest.mark.parametrize('name', spec.available('flaxformer_lite.feed_forward'))
def test_bfloat16_rounds_operands_and_returns_float32(name):
    _, exact = run(name, X)
    _, y = run(name, X, dtype=jnp.bfloat16)
    assert y.dtype == jnp.float32
    assert (y != y.astype(jnp.bfloat16)).any(), 'sums were rounded to bfloat16'
    # Two products in a row of operands with 8 bits of fraction.
    np.testing.assert_allclose(y, exact, atol=4 * 2**-8 * np.abs(exact).max())

"""What matrices are at first: their spread, by the papers' formulas."""

import jax
import numpy as np
import pytest

from flaxformer_lite import spec

FAN_IN, FAN_OUT = 300, 500
STACKS = dict(stack='encoder', encoder_layers=2, decoder_layers=3)
BETA = 0.87 * 48 ** (-1 / 16)


def matrix(text, name='up', **facts):
    init = spec.make('flaxformer_lite.init', text, **STACKS | facts)
    return np.asarray(init.matrix(jax.random.key(0), FAN_IN, FAN_OUT, name), np.float64)


@pytest.mark.parametrize(
    ('text', 'name', 'std'),
    [
        ('xavier', 'up', (2 / 800) ** 0.5),
        ('kaiming', 'up', (2 / 300) ** 0.5),
        ('normal', 'up', 0.02),
        ('normal(std=0.5)', 'query', 0.5),
        ('deepnorm', 'query', (2 / 800) ** 0.5),
        ('deepnorm', 'key', (2 / 800) ** 0.5),
        *(('deepnorm', n, BETA * (2 / 800) ** 0.5) for n in ('value', 'merge', 'up', 'down')),
    ],
)
def test_the_spread_is_the_papers(text, name, std):
    w = matrix(text, name)
    assert w.shape == (FAN_IN, FAN_OUT)
    # The mean and the deviation of 150,000 numbers are known to a hundredth of it.
    assert abs(w.mean()) < 0.01 * std
    np.testing.assert_allclose(w.std(), std, rtol=0.01)


@pytest.mark.parametrize(
    ('facts', 'beta'),
    [
        (dict(stack='decoder'), 36**-0.25),
        (dict(decoder_layers=0), 16**-0.25),
        (dict(stack='decoder', encoder_layers=0), 24**-0.25),
    ],
)
def test_deepnorms_constant_goes_by_the_stacks(facts, beta):
    ratio = matrix('deepnorm', **facts).std() / matrix('deepnorm', 'query', **facts).std()
    np.testing.assert_allclose(ratio, beta, rtol=1e-5)


@pytest.mark.parametrize('name', spec.available('flaxformer_lite.init'))
def test_embeddings_have_length_one(name):
    init = spec.make('flaxformer_lite.init', name, **STACKS)
    table = np.asarray(init.embedding(jax.random.key(0), 1000, 64), np.float64)
    np.testing.assert_allclose(np.square(table).sum(1).mean(), 1.0, rtol=0.02)

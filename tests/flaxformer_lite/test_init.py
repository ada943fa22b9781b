"""Tests of initializers."""

import jax
import numpy as np
import pytest

from flaxformer_lite.config import variants
from flaxformer_lite.sizes import Sizes

FAN_IN, FAN_OUT = 300, 500
SIZES = dict(
    role='encoder',
    encoder_layers=2,
    decoder_layers=3,
    d_model=64,
    d_k_derived=True,
)
BETA = 0.87 * 48 ** (-1 / 16)


def made(text, **sizes):
    return variants.make('init', text, sizes=Sizes(**SIZES | sizes))


def matrix(text, name='up', **sizes):
    init = made(text, **sizes)
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
        *(
            ('deepnorm', n, BETA * (2 / 800) ** 0.5)
            for n in ('value', 'out_proj', 'up', 'down')
        ),
    ],
)
def test_the_spread_is_the_papers(text, name, std):
    w = matrix(text, name)
    assert w.shape == (FAN_IN, FAN_OUT)
    # The mean and the deviation of 150,000 numbers are known to a hundredth of it.
    assert abs(w.mean()) < 0.01 * std
    np.testing.assert_allclose(w.std(), std, rtol=0.01)


@pytest.mark.parametrize('name', variants.names('init'))
def test_embeddings_have_length_one(name):
    table = np.asarray(made(name).embedding(jax.random.key(0), 1000, 64), np.float64)
    np.testing.assert_allclose(np.square(table).sum(1).mean(), 1.0, rtol=0.02)


def test_mu_p_is_xavier_at_its_base():
    init = made('mu_p(base=64)')
    np.testing.assert_array_equal(
        matrix('mu_p(base=64)', 'query'), matrix('xavier', 'query')
    )
    paths = [
        ('embedding',),
        ('encoder', 'query', 'kernel'),
        ('encoder', 'up', 'kernel'),
    ]
    assert init.logit_scale == 1
    assert all(init.lr_multiplier(path) == 1 for path in paths)


ROOT = 2**-0.5


@pytest.mark.parametrize(
    ('path', 'derived', 'given'),
    [
        ('embedding', ROOT, ROOT),
        ('source_embedding', ROOT, ROOT),
        ('output_bias', 1, 1),
        ('encoder/layer_0/feed_forward/up/kernel', 1 / 2, 1 / 2),
        ('encoder/layer_0/feed_forward/up/bias', 1, 1),
        ('encoder/layer_0/residual_1/norm/scale', 1, 1),
        ('decoder/layer_0/self_attention/query/kernel', ROOT / 2, 1 / 2),
        ('decoder/layer_0/self_attention/key/kernel', 1 / 2, 1 / 2),
        ('decoder/layer_0/self_attention/core_attention/form', 1 / 2, 1),
        ('decoder/cross_attention/query', 1 / 2, 1 / 2),
    ],
)
def test_mu_ps_rates_at_twice_the_base(path, derived, given):
    for d_k_derived, multiplier in ((True, derived), (False, given)):
        init = made('mu_p(base=32)', d_model=64, d_k_derived=d_k_derived)
        assert init.lr_multiplier(tuple(path.split('/'))) == pytest.approx(multiplier)
        assert init.logit_scale == pytest.approx(ROOT)

"""Tests of initializers."""

import jax
import numpy as np
import pytest
import tiny

from flaxformer_lite.config import variants
from flaxformer_lite.sizes import Sizes

FAN_IN, FAN_OUT = 300, 500
SIZES = dict(
    role='encoder', encoder_layers=2, decoder_layers=3, d_model=64, d_k_derived=True
)
BETA = 0.87 * 48 ** (-1 / 16)


def build(text, **sizes):
    return variants.make('init', text, sizes=Sizes(**SIZES | sizes))


def matrix(text, name='up', **sizes):
    init = build(text, **sizes)
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
def test_standard_deviation_equals_that_of_the_paper(text, name, std):
    w = matrix(text, name)
    assert w.shape == (FAN_IN, FAN_OUT)
    # 150,000 numbers determine mean and deviation to a hundredth of the deviation.
    assert abs(w.mean()) < 0.01 * std
    np.testing.assert_allclose(w.std(), std, rtol=0.01)


@pytest.mark.parametrize('name', variants.names('init'))
def test_embeddings_have_unit_length_on_average(name):
    table = np.asarray(build(name).embedding(jax.random.key(0), 1000, 64), np.float64)
    np.testing.assert_allclose(np.square(table).sum(1).mean(), 1.0, rtol=0.02)


def test_mu_p_equals_xavier_at_its_base_width():
    init = build('mu_p(base=64)')
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
def test_mu_p_rates_at_twice_the_base_width(path, derived, given):
    for d_k_derived, multiplier in ((True, derived), (False, given)):
        init = build('mu_p(base=32)', d_model=64, d_k_derived=d_k_derived)
        assert init.lr_multiplier(tuple(path.split('/'))) == pytest.approx(multiplier)
        assert init.logit_scale == pytest.approx(ROOT)


def test_mu_p_multiplies_rates_by_the_width_that_a_matrix_reads():
    model = tiny.model(init='mu_p(base=3)', decoder__d_model=6, tie='none', d_k=4)
    cross = 'decoder/layer_0/cross_attention'
    rates = {
        'encoder/layer_0/feed_forward/up/kernel': 1 / 4,
        'decoder/layer_0/feed_forward/up/kernel': 1 / 2,
        f'{cross}/query/kernel': 1 / 2,
        f'{cross}/key/kernel': 1 / 4,
        f'{cross}/value/kernel': 1 / 4,
        f'{cross}/out_proj/kernel': 1 / 2,
        'embedding': 2**-0.5,
        'output': 2**-0.5,
        'source_embedding': 4**-0.5,
    }
    found = {path: model.lr_multiplier(tuple(path.split('/'))) for path in rates}
    assert found == pytest.approx(rates)
    assert model.dense.kernel_init.logit_scale == pytest.approx(2**-0.5)

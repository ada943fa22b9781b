"""Tests of initializers."""

import jax
import numpy as np
import pytest
import tiny

from configs import wmt_base
from experiments.config import load
from experiments.optimizers import optimizer
from flaxformer_lite.config import build, variants
from flaxformer_lite.sizes import Sizes
from flaxformer_lite.training.train_step import init_state, make_train_step

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


def change_of_logits(init, width):
    """Returns how far five steps of Adam move the logits."""
    config = wmt_base.get_config()
    sizes = dict(
        d_model=width, d_ff=2 * width, num_heads=4, num_layers=1, dropout=0.0, init=init
    )
    config.model.update(sizes)
    config.optimizer.schedule = 'constant_schedule(value=0.01)'
    config = load.from_config_dict(config)
    model = build.model(config.model, tiny.VOCAB)
    update, _ = optimizer.make(config).build(model)
    state = init_state(model, update, jax.random.key(0))
    rows = tiny.batch([[pair] for pair in tiny.PAIRS])
    step = jax.jit(make_train_step(model, update))

    def logits(state):
        return tiny.apply(model, state.variables, rows['source'], rows['inputs'])

    before = logits(state)
    for _ in range(5):
        state, _ = step(state, rows, jax.random.key(0))
    return float(np.sqrt(np.square(logits(state) - before).mean()))


@pytest.mark.slow
def test_with_mu_p_a_rate_means_the_same_at_any_width():
    """Runs the coordinate check of Yang et al. (2021), appendix D.1."""
    mu_p, xavier = (
        [change_of_logits(init, width) for width in (32, 512)]
        for init in ('mu_p(base=32)', None)
    )
    assert mu_p[0] == pytest.approx(xavier[0], rel=1e-3)  # the base
    assert 0.5 < mu_p[1] / mu_p[0] < 2
    assert xavier[1] / xavier[0] > 3

"""What matrices are at first: their spread, by the papers' formulas."""

import jax
import numpy as np
import pytest
import tiny

from configs import wmt_base
from experiments.command_line.errors import UserError
from experiments.training import optimizer
from flaxformer_lite import build, spec, training

FAN_IN, FAN_OUT = 300, 500
STACKS = dict(stack='encoder', encoder_layers=2, decoder_layers=3)
SIZES = dict(d_model=64, d_k_given=False)
BETA = 0.87 * 48 ** (-1 / 16)


def matrix(text, name='up', **facts):
    init = spec.make('flaxformer_lite.init', text, **STACKS | SIZES | facts)
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
            for n in ('value', 'merge', 'up', 'down')
        ),
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
    ratio = (
        matrix('deepnorm', **facts).std() / matrix('deepnorm', 'query', **facts).std()
    )
    np.testing.assert_allclose(ratio, beta, rtol=1e-5)


@pytest.mark.parametrize('name', spec.available('flaxformer_lite.init'))
def test_embeddings_have_length_one(name):
    init = spec.make('flaxformer_lite.init', name, **STACKS, **SIZES)
    table = np.asarray(init.embedding(jax.random.key(0), 1000, 64), np.float64)
    np.testing.assert_allclose(np.square(table).sum(1).mean(), 1.0, rtol=0.02)


def test_mu_p_is_xavier_at_its_base():
    init = spec.make('flaxformer_lite.init', 'mu_p(base=64)', **SIZES)
    np.testing.assert_array_equal(
        matrix('mu_p(base=64)', 'query'), matrix('xavier', 'query')
    )
    paths = [
        ('embedding',),
        ('encoder', 'query', 'kernel'),
        ('encoder', 'up', 'kernel'),
    ]
    assert init.logits == 1 and all(init.rate(path) == 1 for path in paths)


ROOT = 2**-0.5


@pytest.mark.parametrize(
    ('path', 'derived', 'given'),
    [
        ('embedding', ROOT, ROOT),
        ('source_embedding', ROOT, ROOT),
        ('encoder/layer_0/feed_forward/up/kernel', 1 / 2, 1 / 2),
        ('encoder/layer_0/feed_forward/up/bias', 1, 1),
        ('encoder/layer_0/residual_1/norm/scale', 1, 1),
        ('decoder/layer_0/attention/query/kernel', ROOT / 2, 1 / 2),
        ('decoder/layer_0/attention/key/kernel', 1 / 2, 1 / 2),
        ('decoder/layer_0/attention/attend/form', 1 / 2, 1),
        ('decoder/cross_attention/query', 1 / 2, 1 / 2),
    ],
)
def test_mu_ps_rates_at_twice_the_base(path, derived, given):
    for d_k_given, rate in ((False, derived), (True, given)):
        facts = dict(d_model=64, d_k_given=d_k_given)
        init = spec.make('flaxformer_lite.init', 'mu_p(base=32)', **facts)
        assert init.rate(tuple(path.split('/'))) == pytest.approx(rate)
        assert init.logits == pytest.approx(ROOT)


def test_mu_p_refuses_a_schedule_that_goes_by_d_model():
    config = wmt_base.get_config()
    config.model.init = 'mu_p'
    with pytest.raises(
        UserError, match=r'optimizer.schedule=noam.* model.init=mu_p .*cosine'
    ):
        optimizer.make(config)


def change_of_logits(init, width):
    """How far five steps of Adam take the logits, at a rate that does not know the width."""
    config = wmt_base.get_config()
    sizes = dict(
        d_model=width, d_ff=2 * width, num_heads=4, num_layers=1, dropout=0.0, init=init
    )
    config.model.update(sizes)
    config.optimizer.schedule = 'constant_schedule(value=0.01)'
    update, _ = optimizer.make(config)
    model = build.model(config.model, tiny.VOCAB)
    state = training.init(model, update, jax.random.key(0))
    rows = tiny.batch([[pair] for pair in tiny.PAIRS])
    step = jax.jit(training.make_step(model, update))

    def logits(state):
        return tiny.apply(model, state.variables, rows['source'], rows['inputs'])

    before = logits(state)
    for _ in range(5):
        state, _ = step(state, rows, jax.random.key(0))
    return float(np.sqrt(np.square(logits(state) - before).mean()))


def test_with_mu_p_a_rate_means_the_same_at_any_width():
    """The coordinate check of Yang et al. (2021), appendix D.1."""
    mu_p, xavier = (
        [change_of_logits(init, width) for width in (32, 512)]
        for init in ('mu_p(base=32)', None)
    )
    assert mu_p[0] == pytest.approx(xavier[0], rel=1e-3)  # the base
    assert 0.5 < mu_p[1] / mu_p[0] < 2
    assert xavier[1] / xavier[0] > 3

"""The optimizer against its papers, stated in float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import wmt_base
from experiments import optimizer
from experiments.errors import UserError

STEPS = 6
D_MODEL, WARMUP = 16, 3


def config(**settings):
    result = wmt_base.get_config()
    result.model.d_model = D_MODEL
    result.optimizer.schedule = f'noam(warmup={WARMUP})'
    result.optimizer.update(settings)
    return result


def problem():
    """Parameters of some names, and gradients whose size changes from step to step."""
    rng = np.random.default_rng(0)
    shapes = {'kernel': (3, 4), 'scale': (4,), 'embedding': (5, 2), 'form': (2, 3)}

    def draw():
        return {name: rng.standard_normal(shape) for name, shape in shapes.items()}

    sizes = 10.0 ** rng.uniform(-2, 1, STEPS)
    return draw(), [{name: size * g for name, g in draw().items()} for size in sizes]


def run(config):
    """The parameters after every update."""
    update, _ = optimizer.make(config, steps=100)
    params, gradients = jax.tree.map(jnp.float32, problem())
    state = update.init(params)

    @jax.jit
    def step(gradient, state, params):
        updates, state = update.update(gradient, state, params)
        return jax.tree.map(jnp.add, params, updates), state

    history = []
    for gradient in gradients:
        params, state = step(gradient, state, params)
        history.append(params)
    return history


def adam(*, b1, b2, eps, clip=np.inf, decay=0.0):
    """Kingma and Ba (2015), algorithm 1, at the learning rate of "Attention Is All You Need", §5.3;
    with the decay of Loshchilov and Hutter (2019), algorithm 2, of matrices and embeddings."""
    params, gradients = problem()
    m, v = ({name: 0.0 * w for name, w in params.items()} for _ in 'mv')
    history = []
    for t, gradient in enumerate(gradients, 1):
        rate = D_MODEL**-0.5 * min(t**-0.5, t * WARMUP**-1.5)
        norm = np.sqrt(sum((g**2).sum() for g in gradient.values()))
        for name, w in params.items():
            g = gradient[name] * min(1.0, clip / norm)
            m[name] = b1 * m[name] + (1 - b1) * g
            v[name] = b2 * v[name] + (1 - b2) * g**2
            direction = m[name] / (1 - b1**t) / (np.sqrt(v[name] / (1 - b2**t)) + eps)
            kept = decay * w if name in ('kernel', 'embedding') else 0.0
            params = params | {name: w - rate * (direction + kept)}
        history.append(params)
    return history


def assert_equal(actual, expected):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=3e-6), actual, expected
    )


@pytest.mark.parametrize(
    'settings', [{}, {'b1': 0.5, 'b2': 0.7, 'eps': 0.3}, {'b1': 0.0}]
)
def test_adam_is_the_papers(settings):
    expected = adam(**{'b1': 0.9, 'b2': 0.98, 'eps': 1e-9} | settings)
    assert_equal(run(config(**settings)), expected)


def test_a_gradient_is_scaled_down_to_the_norm_of_clip():
    # A large ε, for without it Adam hardly feels the size of a gradient.
    settings = dict(b1=0.9, b2=0.98, eps=0.3, clip=0.5)
    assert_equal(run(config(**settings)), adam(**settings))


def test_adamw_decays_matrices_and_embeddings_and_nothing_else():
    expected = adam(b1=0.9, b2=0.98, eps=1e-9, decay=0.4)
    assert_equal(run(config(name='adamw', weight_decay=0.4)), expected)


def test_the_schedule_is_the_optimizers():
    _, schedule = optimizer.make(
        config(schedule='constant_schedule(value=0.25)'), steps=100
    )
    assert schedule(7) == 0.25


NAN = float('nan')


@pytest.mark.parametrize(
    'settings, message',
    [
        ({'b1': 1.0}, 'optimizer.b1 must be at least 0 and below 1, not 1.0'),
        ({'b1': NAN}, 'optimizer.b1 .* not nan'),
        ({'b2': -0.1}, 'optimizer.b2 must be at least 0 and below 1, not -0.1'),
        ({'eps': 0.0}, 'optimizer.eps must be above 0'),
        ({'eps': NAN}, 'optimizer.eps .* not nan'),
        ({'clip': -1.0}, 'optimizer.clip must be at least 0'),
        ({'clip': float('inf')}, 'optimizer.clip .* not inf'),
        ({'weight_decay': NAN, 'name': 'adamw'}, 'optimizer.weight_decay .* not nan'),
        (
            {'weight_decay': 0.1},
            'optimizer.weight_decay=0.1 is for optimizer.name=adamw',
        ),
        (
            {'name': 'adamax'},
            "optimizer.name must be one of adam, adamw, not 'adamax'; did you",
        ),
        (
            {'schedule': 'noah(warmup=4)'},
            "optimizer.schedule: 'noah' is not one of noam",
        ),
        (
            {'schedule': 'noam(warmup=0)'},
            'optimizer.schedule: warmup must be at least 1',
        ),
        ({'schedule': 'noam(warmup="4")'}, 'optimizer.schedule: '),
        ({'schedule': 'constant_schedule(value="x")'}, 'optimizer.schedule: '),
    ],
)
def test_what_cannot_be_is_refused_by_name(settings, message):
    with pytest.raises(UserError, match=message):
        optimizer.make(config(**settings), steps=100)

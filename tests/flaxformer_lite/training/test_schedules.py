"""Tests of learning rates against formulas, and of invalid schedules."""

import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import testing
from flaxformer_lite.training import learning_rates
from flaxformer_lite.training.schedules.base import Schedule
from flaxformer_lite.training.schedules.noam import Noam


@pytest.mark.parametrize(
    ('d_model', 'warmup', 'factor'), [(512, 4000, 1.0), (128, 400, 2.5)]
)
def test_noam_equals_the_papers_formula_from_step_1(d_model, warmup, factor):
    rate = Noam(d_model, warmup, factor)
    for count in (0, 1, 17, warmup - 2, warmup - 1, warmup, 10 * warmup, 100_000):
        s = count + 1
        expected = factor * d_model**-0.5 * min(s**-0.5, s * warmup**-1.5)
        np.testing.assert_allclose(rate(count), expected, rtol=1e-5)


def test_cosine_falls_to_zero_at_the_last_step():
    rate = learning_rates.make('cosine(peak=0.2, warmup=0.2)', 64, 100)
    s = np.arange(1, 102)
    cosine = 0.1 * (1 + np.cos(np.pi * (s - 20) / 81))
    expected = np.where(s < 20, 0.2 * s / 20, cosine)
    np.testing.assert_allclose([rate(i - 1) for i in s], expected, atol=1e-7)
    assert rate(100) == rate(1000) == 0


def test_every_schedule_is_tested():
    assert learning_rates.SCHEDULES.names() == ['cosine', 'noam']


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('nome', "'nome' is not one of cosine, noam"),
        ('noam(warm=3)', 'noam.*warm'),
        ('cosine_decay_schedule(init_value=0.1)', 'cosine_decay_schedule.*decay_steps'),
        ('constant_schedule(value=None)', 'does not return a learning rate'),
        ('constant_schedule(value=-1)', 'rate at step 0 is -1'),
        (
            'linear_schedule(init_value=1.0, end_value=-1.0, transition_steps=1000)',
            'rate at step 510 is -',
        ),
        (
            'polynomial_schedule(init_value=1.0, end_value=0.0, power=-200, '
            'transition_steps=1000)',
            'rate at step .* is inf',
        ),
    ],
)
def test_invalid_schedules_and_rates_are_rejected(text, message):
    with pytest.raises(ValueError, match=message):
        learning_rates.check_rates(learning_rates.make(text, 64, 1000), 1000)


class Falling(Schedule):
    steps: int
    peak: float = 1.0

    def __call__(self, count):
        return self.peak * (1 - jnp.asarray(count, jnp.float32) / self.steps)


def test_users_schedule_receives_the_steps_of_the_run():
    spec = f'{__name__}.Falling(peak=0.5)'
    rate = learning_rates.make(spec, 64, 100)
    assert rate(0) == 0.5 and rate(100) == 0
    assert learning_rates.depends_on(rate, 'steps')
    assert not learning_rates.depends_on(rate, 'd_model')
    longer = learning_rates.with_steps(rate, 200)
    assert longer(100) == 0.25 and longer(200) == 0
    paper = learning_rates.make('noam', 64, 100)
    assert learning_rates.depends_on(paper, 'd_model')
    assert learning_rates.with_steps(paper, 200) is paper
    with pytest.raises(ValueError, match="unknown argument 'steps'"):
        learning_rates.make(f'{__name__}.Falling(steps=3)', 64, 100)


def test_contracts_find_a_negative_rate():
    for spec, count in (('noam', 0), (f'{__name__}.Falling(peak=-1.0)', 1)):
        assert len(testing.broken(testing.schedule_findings(spec))) == count

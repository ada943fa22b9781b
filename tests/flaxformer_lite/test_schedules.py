"""Tests of learning rates against formulas, and of invalid schedules."""

import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import testing
from flaxformer_lite.training import schedules
from flaxformer_lite.training.schedules.base import Schedule
from flaxformer_lite.training.schedules.noam import NoamSchedule


@pytest.mark.parametrize(
    ('d_model', 'warmup', 'factor'), [(512, 4000, 1.0), (128, 400, 2.5)]
)
def test_noam_is_the_papers_formula_and_its_first_step_is_one(d_model, warmup, factor):
    rate = NoamSchedule(d_model, warmup, factor)
    for count in (0, 1, 17, warmup - 2, warmup - 1, warmup, 10 * warmup, 100_000):
        s = count + 1
        expected = factor * d_model**-0.5 * min(s**-0.5, s * warmup**-1.5)
        np.testing.assert_allclose(rate(count), expected, rtol=1e-5)


def test_each_file_has_a_law():
    assert schedules.SCHEDULES.names() == ['cosine', 'noam']  # each is below


def test_cosine_ends_with_the_training():
    rate = schedules.make('cosine(peak=0.2, warmup=0.2)', 64, 100)
    s = np.arange(1, 102)
    down = 0.1 * (1 + np.cos(np.pi * (s - 20) / 81))
    expected = np.where(s < 20, 0.2 * s / 20, down)
    np.testing.assert_allclose([rate(i - 1) for i in s], expected, atol=1e-7)
    assert rate(100) == rate(1000) == 0


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        (
            'nome',
            "'nome' is not one of cosine, noam, constant_schedule, "
            '.*cosine_decay_schedule',
        ),
        ('noam(warm=3)', 'noam.*warm'),
        ('cosine_decay_schedule(init_value=0.1)', 'cosine_decay_schedule.*decay_steps'),
        ('constant_schedule(value=None)', 'does not return a learning rate'),
    ],
)
def test_a_schedule_that_cannot_be_made_is_refused_by_name(text, message):
    with pytest.raises(ValueError, match=message):
        schedules.make(text, 64, 100)


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('constant_schedule(value=-1)', 'rate at step 0 is -1; it must be at'),
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
def test_a_schedule_of_negative_or_infinite_rates_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        schedules.check_rates(schedules.make(text, 64, 1000), 1000)


class Falling(Schedule):
    steps: int
    peak: float = 1.0

    def __call__(self, count):
        return self.peak * (1 - jnp.asarray(count, jnp.float32) / self.steps)


def test_a_schedule_of_ones_own_is_given_what_it_takes_of_the_run():
    spec = f'{__name__}.Falling(peak=0.5)'
    rate = schedules.make(spec, 64, 100)
    assert rate(0) == 0.5 and rate(100) == 0
    assert schedules.depends_on(rate, 'steps')
    assert not schedules.depends_on(rate, 'd_model')
    longer = schedules.with_steps(rate, 200)
    assert longer(100) == 0.25 and longer(200) == 0
    paper = schedules.make('noam', 64, 100)
    assert schedules.depends_on(paper, 'd_model')
    assert schedules.with_steps(paper, 200) is paper
    with pytest.raises(ValueError, match="unknown argument 'steps'"):
        schedules.make(f'{__name__}.Falling(steps=3)', 64, 100)


@pytest.mark.parametrize(
    ('spec', 'broken'),
    [
        ('noam', 0),
        ('cosine(peak=0.1)', 0),
        (f'{__name__}.Falling', 0),
        (f'{__name__}.Falling(peak=-1.0)', 1),
    ],
)
def test_the_contracts_find_a_negative_rate(spec, broken):
    assert len(testing.broken(testing.schedule_findings(spec))) == broken

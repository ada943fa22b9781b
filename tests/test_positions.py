import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from flaxformer_lite import spec
from flaxformer_lite.positions.learned import Learned
from flaxformer_lite.positions.sinusoidal import Sinusoidal, sinusoids


def table(length, d_model):
    return np.asarray(jax.jit(sinusoids, static_argnums=1)(jnp.arange(length)[None], d_model))[0]


def test_sinusoids_written_out():
    rows = table(4, 8)
    np.testing.assert_array_equal(rows[0], [0, 1] * 4)
    expected = [
        [0.841471, 0.540302, 0.099833, 0.995004, 0.01, 0.99995, 0.001, 1],
        [0.14112, -0.989992, 0.29552, 0.955336, 0.029996, 0.99955, 0.003, 0.999996],
    ]
    np.testing.assert_allclose(rows[[1, 3]], expected, atol=1e-6)


def test_sinusoids_are_the_papers_formula():
    pos, i = np.arange(300)[:, None], np.arange(256)
    angle = pos / 10000 ** (2 * i / 512)
    # float32 holds an angle of 300 to 3e-5.
    rows = table(300, 512)
    np.testing.assert_allclose(rows[:, 0::2], np.sin(angle), atol=6e-5)
    np.testing.assert_allclose(rows[:, 1::2], np.cos(angle), atol=6e-5)


def test_the_last_timescale_is_the_papers_and_not_tensor2tensors():
    # 10000^(510/512); tensor2tensor spaces them so that the last is 10000.
    np.testing.assert_allclose(1 / np.arcsin(table(2, 512)[1, 510]), 9646.6, atol=0.1)


def test_a_shift_is_a_rotation_that_does_not_depend_on_where():
    rows, shift = np.float64(table(60, 16)), 7
    sine, cosine = rows[:, 0::2], rows[:, 1::2]
    s, c = sine[shift], cosine[shift]
    np.testing.assert_allclose(rows[shift:, 0::2], (sine * c + cosine * s)[:-shift], atol=1e-5)
    np.testing.assert_allclose(rows[shift:, 1::2], (cosine * c - sine * s)[:-shift], atol=1e-5)


def test_sinusoids_go_by_position_not_by_slot():
    x, pos = jnp.ones((2, 3, 8)), jnp.array([[2, 0, 1], [5, 5, 0]])
    y = tiny.apply(Sinusoidal(), {}, x, pos, method='embed')
    np.testing.assert_array_equal(y, 1 + table(6, 8)[np.asarray(pos)])


def test_an_odd_width_has_a_sine_without_a_cosine():
    with pytest.raises(ValueError, match='d_model must be even.* 7'):
        sinusoids(jnp.zeros((1, 1), jnp.int32), 7)


def test_learned_positions_add_a_row_for_each_position():
    positions = Learned(max_length=5)
    x, pos = jnp.ones((1, 4, 6)), jnp.array([[4, 0, 0, 2]])
    p = tiny.variables(positions, x, pos, method='embed')
    rows = np.asarray(p['params']['table'])
    assert rows.shape == (5, 6)
    y = tiny.apply(positions, p, x, pos, method='embed')
    np.testing.assert_array_equal(y, 1 + rows[[[4, 0, 0, 2]]])


def test_a_position_beyond_the_learned_ones_is_never_another_ones():
    positions = Learned(max_length=5)
    x, pos = jnp.ones((1, 3, 6)), jnp.array([[4, 5, 1000]])
    y = tiny.apply(
        positions, tiny.variables(positions, x, pos, method='embed'), x, pos, method='embed'
    )
    assert np.isfinite(y[0, 0]).all() and np.isnan(y[0, 1:]).all()


def test_without_positions_the_order_of_the_source_does_not_matter():
    model = tiny.model(positions='none')
    p = {'params': tiny.parameters(model)}
    inputs = jnp.array([[2, 4, 5]])
    source, shuffled = jnp.array([[4, 5, 6, 7]]), jnp.array([[6, 4, 7, 5]])
    np.testing.assert_allclose(
        tiny.apply(model, p, source, inputs), tiny.apply(model, p, shuffled, inputs), atol=1e-5
    )


@pytest.mark.parametrize('name', spec.available('flaxformer_lite.positions'))
def test_with_positions_the_order_of_the_source_matters(name):
    if name == 'none':
        return
    model = tiny.model(positions=name)
    p = {'params': tiny.parameters(model)}
    inputs = jnp.array([[2, 4, 5]])
    source, shuffled = jnp.array([[4, 5, 6, 7]]), jnp.array([[6, 4, 7, 5]])
    difference = tiny.apply(model, p, source, inputs) - tiny.apply(model, p, shuffled, inputs)
    assert np.abs(difference).max() > 1e-3

"""Tests of positions against their papers' formulas."""

import flax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import linen as nn
from tiny import apply, normal, normal32

from flaxformer_lite.config import variants
from flaxformer_lite.decoding import Greedy
from flaxformer_lite.generation import generate
from flaxformer_lite.positions.base import Positions
from flaxformer_lite.positions.learned import Learned
from flaxformer_lite.sizes import Sizes
from flaxformer_lite.validation import Size


def positions_of(text, **sizes):
    return variants.make('positions', text, sizes=Sizes(**sizes))


class Rows(Positions):
    """Positions with a table of limited length."""

    rows: Size = 4

    @property
    def num_positions(self):
        return self.rows


class Table(Rows):
    @nn.compact
    def embed(self, x_BTD, positions_BT):
        shape = self.rows, self.sizes.d_model
        return x_BTD + self.param('table', nn.initializers.ones, shape)[positions_BT]


class Factors(Rows):
    @nn.compact
    def rotate(self, x_BTHK, positions_BT):
        shape = self.rows, self.sizes.d_k
        factors = self.param('factors', nn.initializers.ones, shape)
        return x_BTHK * factors[positions_BT][:, :, None]


SIX, NINE = 'test_positions.Table(rows=6)', 'test_positions.Table(rows=9)'


def test_tables_limit_the_number_of_positions_of_a_model():
    for settings, limit in (
        (dict(positions=SIX), 6),
        (dict(positions='rotary', decoder__positions=SIX), 6),
        (dict(positions='[test_positions.Factors(rows=6), none]'), 6),
        (dict(positions='none', cross__positions='test_positions.Factors'), 4),
        (dict(positions=SIX, continuous_positions=True), 3),
        (dict(positions=NINE, architecture='decoder_only'), 4),
        (dict(positions=NINE, decoder__positions='learned(max_length=7)'), 7),
        (dict(positions='sinusoidal'), None),
    ):
        assert tiny.model(**settings).max_length == limit, settings


@pytest.mark.ci
def test_sentence_longer_than_a_table_is_rejected():
    model = tiny.model(positions='test_positions.Table', num_layers=1)
    variables = tiny.all_variables(model)
    found = generate(model, variables, [[4, 5, 6, 1]], Greedy())
    assert found.tokens.shape == (1, 1, 4)
    with pytest.raises(ValueError, match='a source has 5 tokens, but .* for only 4'):
        generate(model, variables, [[4, 5, 6, 7, 1]], Greedy())


def embedded(text, x_BTD, positions_BT):
    positions = positions_of(text, d_model=x_BTD.shape[-1])
    found = apply(positions, {}, x_BTD, jnp.asarray(positions_BT), method='embed')
    return np.asarray(found)


def table(text, length, d_model):
    return embedded(text, jnp.zeros((1, length, d_model)), np.arange(length)[None])[0]


def test_sinusoids_equal_the_papers_formula():
    pos, i = np.arange(300)[:, None], np.arange(256)
    angle = pos / 10000 ** (2 * i / 512)
    # float32 represents an angle of 300 with an error of 3e-5.
    rows = table('sinusoidal', 300, 512)
    np.testing.assert_allclose(rows[:, 0::2], np.sin(angle), atol=6e-5)
    np.testing.assert_allclose(rows[:, 1::2], np.cos(angle), atol=6e-5)
    # 10000^(510/512); in tensor2tensor the last timescale is 10000.
    np.testing.assert_allclose(1 / np.arcsin(rows[1, 510]), 9646.6, atol=0.1)


def test_sinusoids_depend_on_positions_rather_than_columns():
    x, pos = jnp.ones((2, 3, 8)), np.array([[2, 0, 1], [5, 5, 0]])
    y = embedded('sinusoidal', x, pos)
    np.testing.assert_array_equal(y, 1 + table('sinusoidal', 6, 8)[pos])


def test_learned_positions_add_a_row_per_position_and_nan_beyond_the_table():
    positions = Learned(max_length=5)
    x, pos = jnp.ones((1, 6, 6)), jnp.array([[4, 0, 0, 2, 5, 1000]])
    p = tiny.variables(positions, x, pos, method='embed')
    rows = np.asarray(p['params']['table'])
    assert rows.shape == (5, 6)
    y = np.asarray(apply(positions, p, x, pos, method='embed'))
    np.testing.assert_array_equal(y[:, :4], 1 + rows[[[4, 0, 0, 2]]])
    assert np.isnan(y[:, 4:]).all()


def sines_then_cosines(angle):
    return np.concatenate([np.sin(angle), np.cos(angle)], -1)


@pytest.mark.parametrize(
    ('d_model', 'wavelengths'), [(8, 10000 ** (np.arange(4) / 3)), (2, 1.0)]
)
def test_sinusoids_of_tensor2tensor_are_sines_then_cosines(d_model, wavelengths):
    expected = sines_then_cosines(np.arange(5)[:, None] / wavelengths)
    found = table('sinusoidal_t2t', 5, d_model)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_sinusoids_of_marian_are_sines_then_cosines_from_an_offset():
    found = table('sinusoidal(interleaved=False, offset=3)', 5, 8)
    angle = (3 + np.arange(5))[:, None] / 10000 ** (np.arange(0, 8, 2) / 8)
    np.testing.assert_allclose(found, sines_then_cosines(angle), atol=1e-6)


def test_scaled_down_sinusoids_equal_scaled_up_embeddings():
    x, pos = normal32(1, 5, 8), np.arange(5)[None]
    found = embedded('sinusoidal(scaled_down=True)', x, pos)
    expected = embedded('sinusoidal', x * 8**0.5, pos) / 8**0.5
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    rows = table('sinusoidal(scaled_down=True)', 5, 8)
    np.testing.assert_allclose(rows[1, 0], np.sin(1) / np.sqrt(8), rtol=1e-6)


def rotated(x, pos, text='rotary'):
    rotary = positions_of(text, d_k=x.shape[-1])
    x = jnp.asarray(x, jnp.float32)[None, :, None]
    found = apply(rotary, {}, x, jnp.asarray(pos)[None], method='rotate')
    return np.asarray(found)[0, :, 0]


def test_rotary_rotates_adjacent_features_by_the_papers_angles():
    x, pos = normal(6, 8), np.array([0, 1, 2, 7, 100, 3])
    angle = pos[:, None] * 500.0 ** (-np.arange(0, 8, 2) / 8)
    turned = (x[:, 0::2] + 1j * x[:, 1::2]) * np.exp(1j * angle)
    expected = np.stack([turned.real, turned.imag], -1).reshape(6, 8)
    found = rotated(x, pos, 'rotary(max_wavelength=500.0)')
    np.testing.assert_allclose(found, expected, atol=2e-5)
    pos = np.array([0, 8, 80, 0, 16, 8])
    found = rotated(x, pos, 'rotary(scale=8.0)')
    np.testing.assert_allclose(found, rotated(x, pos // 8), atol=1e-5)


@pytest.mark.parametrize(
    ('heads', 'slopes'),
    [
        (2, [2**-4, 2**-8]),
        (8, [2.0**-i for i in range(1, 9)]),
        # As in the paper's code: the slopes of 4 heads, then two of 8 heads.
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
    ],
)
def test_alibi_falls_with_distance_by_the_slope_of_each_head(heads, slopes):
    alibi = positions_of('alibi', num_heads=heads)
    q, k = jnp.array([[0, 3]]), jnp.array([[0, 1, 5]])
    bias = alibi.apply({}, q, k, method='bias')
    expected = -np.array(slopes)[:, None, None] * np.array([[0, 1, 5], [3, 2, 2]])
    np.testing.assert_allclose(bias[0], expected, rtol=1e-6)


def test_t5_buckets_equal_those_of_transformers():
    """Compares with Transformers' `T5Attention._relative_position_bucket`."""
    distances = [-300, -128, -40, -16, -15, -7, -1, 0, 1, 7, 8, 15, 40, 300]
    both_sides = [15, 15, 12, 10, 9, 7, 1, 0, 17, 23, 24, 25, 28, 31]
    before = [31, 31, 23, 16, 15, 7, 1, 0, 0, 0, 0, 0, 0, 0]
    # A table of bucket numbers returns the bucket of each distance.
    p = {'params': {'table': jnp.arange(32.0)[:, None]}}
    q, k = jnp.array([[1000]]), 1000 + jnp.array(distances)[None]
    for role, expected in (
        ('encoder', both_sides),
        ('encoder_only', both_sides),
        ('decoder', before),
        ('decoder_only', before),
    ):
        t5 = positions_of('t5', num_heads=1, role=role)
        bias = apply(t5, p, q, k, method='bias')
        assert np.asarray(bias)[0, 0, 0].tolist() == expected


def test_shaws_relative_keys_and_values_equal_the_equations():
    shaw = positions_of('shaw(max_distance=2)', d_k=4, d_v=3)
    q, w = normal(1, 3, 2, 4), np.abs(normal(1, 2, 3, 5, seed=1))
    q_pos, k_pos = np.array([[0, 2, 6]]), np.array([[0, 1, 2, 3, 9]])
    positions = jnp.asarray(q_pos), jnp.asarray(k_pos)
    arguments = jnp.asarray(q, jnp.float32), *positions
    p = tiny.variables(shaw, *arguments, method='scores')
    a_k, a_v = (tiny.float64(p['params'][k]) for k in ('key', 'value'))
    index = np.clip(k_pos[0][None] - q_pos[0][:, None], -2, 2) + 2
    scores = np.einsum('bthk,tsk->bhts', q, a_k[index]) / 2
    found = apply(shaw, p, *arguments, method='scores')
    np.testing.assert_allclose(found, scores, atol=1e-5)
    values = np.einsum('bhts,tsu->bthu', w, a_v[index])
    arguments = jnp.asarray(w, jnp.float32), *positions
    found = apply(shaw, p, *arguments, method='values')
    np.testing.assert_allclose(found, values, atol=1e-5)


def test_scores_of_transformer_xl_equal_terms_b_and_d_of_the_paper():
    """Computes q · W_R R and v · W_R R of equation 5, one distance at a time."""
    xl = positions_of('transformer_xl', d_model=6, num_heads=2, d_k=4, d_v=3)
    q, v = normal(1, 3, 2, 4), normal(2, 4, seed=1)
    q_pos, k_pos = np.array([[0, 2, 60]]), np.array([[0, 1, 2, 3, 90]])
    arguments = jnp.asarray(q, jnp.float32), jnp.asarray(q_pos), jnp.asarray(k_pos)
    p = tiny.variables(xl, *arguments, method='scores')
    p['params']['bias'] = jnp.asarray(v, jnp.float32)
    distance = q_pos[0][:, None, None] - k_pos[0][None, :, None]
    r = sines_then_cosines(distance / 10000 ** (np.arange(0, 6, 2) / 6))
    of_head = np.einsum('tsd,dhk->tshk', r, tiny.float64(p['params']['projection']))
    scores = np.einsum('bthk,tshk->bhts', q + v, of_head) / 2
    found = apply(xl, p, *arguments, method='scores')
    np.testing.assert_allclose(found, scores, atol=2e-5)


@pytest.mark.ci
@pytest.mark.parametrize(
    'positions', tiny.cases(tiny.here('positions'), fast=('shaw', 'transformer_xl'))
)
def test_heads_that_share_keys_equal_heads_with_copies_of_them(positions):
    def model(num_kv_heads):
        fields = dict(architecture='decoder_only', num_layers=1, positions=positions)
        return tiny.model(**fields, num_kv_heads=num_kv_heads)

    def repeated(path, x):
        is_shared = path[-2:] in (('key', 'kernel'), ('value', 'kernel'))
        return jnp.repeat(x, 2, 1) if is_shared else x

    variables = tiny.all_variables(model(1))
    copies = flax.traverse_util.path_aware_map(repeated, variables)
    tokens = tiny.padded([[5, 6, 7, 1], [8, 1]]), tiny.padded([[2, 9, 4], [2]])
    found = apply(model(1), variables, *tokens)
    np.testing.assert_allclose(found, apply(model(2), copies, *tokens), atol=1e-5)

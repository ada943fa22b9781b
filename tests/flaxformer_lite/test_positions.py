"""Tests of positions against their papers' formulas."""

import flax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import linen as nn

from flaxformer_lite.config import variants
from flaxformer_lite.generation import generate
from flaxformer_lite.positions.base import Positions
from flaxformer_lite.positions.learned import LearnedPositions
from flaxformer_lite.positions.sinusoidal import SinusoidalPositions
from flaxformer_lite.sizes import Sizes
from flaxformer_lite.validation import Size

# The buckets of `DISTANCES` in a stack that sees both sides, and in a causal one.
DISTANCES = [-300, -128, -40, -16, -15, -7, -1, 0, 1, 7, 8, 15, 40, 300]
BOTH_SIDES = [15, 15, 12, 10, 9, 7, 1, 0, 17, 23, 24, 25, 28, 31]
BEFORE = [31, 31, 23, 16, 15, 7, 1, 0, 0, 0, 0, 0, 0, 0]


def made(text, **sizes):
    return variants.make('positions', text, sizes=Sizes(**sizes))


TABLE = 'test_positions.Table'


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


@pytest.mark.parametrize(
    ('settings', 'limit'),
    [
        (dict(positions=f'{TABLE}(rows=6)'), 6),
        (dict(positions='rotary', decoder__positions=f'{TABLE}(rows=6)'), 6),
        (dict(positions='[test_positions.Factors(rows=6), none]'), 6),
        (dict(positions='none', cross__positions='test_positions.Factors'), 4),
        (dict(positions=f'{TABLE}(rows=6)', continuous_positions=True), 3),
        (dict(positions=f'{TABLE}(rows=9)', architecture='decoder_only'), 4),
        (
            dict(
                positions=f'{TABLE}(rows=9)', decoder__positions='learned(max_length=7)'
            ),
            7,
        ),
        (dict(positions='sinusoidal'), None),
    ],
    ids=str,
)
def test_a_model_has_the_positions_that_its_tables_declare(settings, limit):
    assert tiny.model(**settings).max_length == limit


def test_a_sentence_longer_than_a_table_is_refused():
    model = tiny.model(positions=f'{TABLE}(rows=4)', num_layers=1)
    variables = tiny.all_variables(model)
    found = generate(model, variables, [[4, 5, 6, 1]], 'greedy')
    assert found.tokens_BNL.shape == (1, 1, 4)
    with pytest.raises(ValueError, match='a source has 5 tokens, but .* for only 4'):
        generate(model, variables, [[4, 5, 6, 7, 1]], 'greedy')


def table(length, d_model):
    nothing, positions = jnp.zeros((1, length, d_model)), jnp.arange(length)[None]
    sinusoidal = SinusoidalPositions(Sizes(d_model=d_model))
    rows = tiny.apply(sinusoidal, {}, nothing, positions, method='embed')
    return np.asarray(rows)[0]


def test_sinusoids_are_the_papers_formula():
    pos, i = np.arange(300)[:, None], np.arange(256)
    angle = pos / 10000 ** (2 * i / 512)
    # float32 holds an angle of 300 to 3e-5.
    rows = table(300, 512)
    np.testing.assert_allclose(rows[:, 0::2], np.sin(angle), atol=6e-5)
    np.testing.assert_allclose(rows[:, 1::2], np.cos(angle), atol=6e-5)


def test_sinusoids_go_by_position_not_by_slot():
    x, pos = jnp.ones((2, 3, 8)), jnp.array([[2, 0, 1], [5, 5, 0]])
    y = tiny.apply(SinusoidalPositions(Sizes(d_model=8)), {}, x, pos, method='embed')
    np.testing.assert_array_equal(y, 1 + table(6, 8)[np.asarray(pos)])


def test_learned_positions_add_a_row_for_each_position():
    positions = LearnedPositions(max_length=5)
    x, pos = jnp.ones((1, 4, 6)), jnp.array([[4, 0, 0, 2]])
    p = tiny.variables(positions, x, pos, method='embed')
    rows = np.asarray(p['params']['table'])
    assert rows.shape == (5, 6)
    y = tiny.apply(positions, p, x, pos, method='embed')
    np.testing.assert_array_equal(y, 1 + rows[[[4, 0, 0, 2]]])


def test_a_position_beyond_the_learned_ones_is_never_another_ones():
    positions = LearnedPositions(max_length=5)
    x, pos = jnp.ones((1, 3, 6)), jnp.array([[4, 5, 1000]])
    p = tiny.variables(positions, x, pos, method='embed')
    y = tiny.apply(positions, p, x, pos, method='embed')
    assert np.isfinite(y[0, 0]).all() and np.isnan(y[0, 1:]).all()


@pytest.mark.parametrize(
    ('d_model', 'wavelengths'), [(8, 10000 ** (np.arange(4) / 3)), (2, 1.0)]
)
def test_tensor2tensors_sinusoids_are_sines_then_cosines_up_to_10000(
    d_model, wavelengths
):
    x = jnp.zeros((1, 5, d_model))
    positions = made('sinusoidal_t2t', d_model=d_model)
    found = positions.apply({}, x, jnp.arange(5)[None], method='embed')
    angle = np.arange(5)[:, None] / wavelengths
    expected = np.concatenate([np.sin(angle), np.cos(angle)], 1)
    np.testing.assert_allclose(found[0], expected, atol=1e-6)


def test_sinusoids_of_marian_are_sines_then_cosines_from_an_offset():
    x, pos = jnp.zeros((1, 5, 8)), jnp.arange(5)[None]
    positions = made('sinusoidal(interleaved=False, offset=3)', d_model=8)
    found = positions.apply({}, x, pos, method='embed')
    angle = (3 + np.arange(5))[:, None] / 10000 ** (np.arange(0, 8, 2) / 8)
    expected = np.concatenate([np.sin(angle), np.cos(angle)], 1)
    np.testing.assert_allclose(found[0], expected, atol=1e-6)


def test_sinusoids_scaled_down_stand_to_embeddings_as_in_the_paper():
    x = np.random.default_rng(0).normal(size=(1, 5, 8)).astype(np.float32)
    pos = jnp.arange(5)[None]
    whole = made('sinusoidal', d_model=8)
    down = made('sinusoidal(scaled_down=True)', d_model=8)
    found = down.apply({}, x, pos, method='embed')
    expected = whole.apply({}, x * 8**0.5, pos, method='embed') / 8**0.5
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    zeros = down.apply({}, jnp.zeros((1, 5, 8)), pos, method='embed')
    np.testing.assert_allclose(zeros[0, 1, 0], np.sin(1) / np.sqrt(8), rtol=1e-6)


def rotated(x, pos, text='rotary'):
    rotary = made(text, d_k=x.shape[-1])
    x = jnp.asarray(x, jnp.float32)[None, :, None]
    turned = rotary.apply({}, x, jnp.asarray(pos)[None], method='rotate')
    return np.asarray(turned)[0, :, 0]


def test_rotary_turns_neighbouring_features_by_the_papers_angles():
    x = np.random.default_rng(0).normal(size=(6, 8))
    pos = np.array([0, 1, 2, 7, 100, 3])
    angle = pos[:, None] * 500.0 ** (-np.arange(0, 8, 2) / 8)
    turned = (x[:, 0::2] + 1j * x[:, 1::2]) * np.exp(1j * angle)
    expected = np.stack([turned.real, turned.imag], -1).reshape(6, 8)
    found = rotated(x, pos, 'rotary(max_wavelength=500.0)')
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_rotary_with_a_scale_has_the_angles_of_nearer_positions():
    x, pos = np.random.default_rng(0).normal(size=(3, 8)), np.array([0, 8, 80])
    expected = rotated(x, pos // 8)
    np.testing.assert_allclose(
        rotated(x, pos, 'rotary(scale=8.0)'), expected, atol=1e-5
    )


@pytest.mark.parametrize(
    ('heads', 'slopes'),
    [
        (2, [2**-4, 2**-8]),
        (8, [2.0**-i for i in range(1, 9)]),
        # The paper's code: those of 4 heads, and two of 8 heads' between them.
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
    ],
)
def test_alibi_falls_with_distance_by_each_heads_slope(heads, slopes):
    alibi = made('alibi', num_heads=heads)
    q, k = jnp.array([[0, 3]]), jnp.array([[0, 1, 5]])
    bias = alibi.apply({}, q, k, method='bias')
    expected = -np.array(slopes)[:, None, None] * np.array([[0, 1, 5], [3, 2, 2]])
    np.testing.assert_allclose(bias[0], expected, rtol=1e-6)


def buckets(role):
    """Reads the bucket of each distance from a table that holds their numbers."""
    t5 = made('t5', num_heads=1, role=role)
    p = {'params': {'table': jnp.arange(32.0)[:, None]}}
    k = 1000 + jnp.array(DISTANCES)[None]
    bias = t5.apply(p, jnp.array([[1000]]), k, method='bias')
    return np.asarray(bias)[0, 0, 0].tolist()


@pytest.mark.parametrize(
    ('role', 'expected'),
    [
        ('encoder', BOTH_SIDES),
        ('encoder_only', BOTH_SIDES),
        ('decoder', BEFORE),
        ('decoder_only', BEFORE),
    ],
)
def test_t5s_buckets_are_those_of_transformers(role, expected):
    """Compares with Transformers' `T5Attention._relative_position_bucket`."""
    assert buckets(role) == expected


def test_shaws_relative_keys_and_values_are_his_equations():
    shaw = made('shaw(max_distance=2)', d_k=4, d_v=3)
    rng = np.random.default_rng(0)
    q, w = rng.normal(size=(1, 3, 2, 4)), rng.random((1, 2, 3, 5))
    q_pos, k_pos = np.array([[0, 2, 6]]), np.array([[0, 1, 2, 3, 9]])
    positions = jnp.asarray(q_pos), jnp.asarray(k_pos)
    arguments = jnp.asarray(q, jnp.float32), *positions
    p = tiny.variables(shaw, *arguments, method='scores')
    a_k, a_v = (tiny.float64(p['params'][k]) for k in ('key', 'value'))
    index = np.clip(k_pos[0][None] - q_pos[0][:, None], -2, 2) + 2
    scores = np.einsum('bthk,tsk->bhts', q, a_k[index]) / 2
    found = tiny.apply(shaw, p, *arguments, method='scores')
    np.testing.assert_allclose(found, scores, atol=1e-5)
    values = np.einsum('bhts,tsu->bthu', w, a_v[index])
    arguments = jnp.asarray(w, jnp.float32), *positions
    found = tiny.apply(shaw, p, *arguments, method='values')
    np.testing.assert_allclose(found, values, atol=1e-5)


def test_transformer_xls_scores_are_the_papers_terms_b_and_d():
    """Computes q · W_R R and v · W_R R of equation 5, one distance at a time."""
    xl = made('transformer_xl', d_model=6, num_heads=2, d_k=4, d_v=3)
    rng = np.random.default_rng(0)
    q, v = rng.normal(size=(1, 3, 2, 4)), rng.normal(size=(2, 4))
    q_pos, k_pos = np.array([[0, 2, 60]]), np.array([[0, 1, 2, 3, 90]])
    arguments = jnp.asarray(q, jnp.float32), jnp.asarray(q_pos), jnp.asarray(k_pos)
    p = tiny.variables(xl, *arguments, method='scores')
    p['params']['bias'] = jnp.asarray(v, jnp.float32)
    distance = q_pos[0][:, None, None] - k_pos[0][None, :, None]
    angle = distance / 10000 ** (np.arange(0, 6, 2) / 6)
    r = np.concatenate([np.sin(angle), np.cos(angle)], -1)
    of_head = np.einsum('tsd,dhk->tshk', r, tiny.float64(p['params']['projection']))
    scores = np.einsum('bthk,tshk->bhts', q + v, of_head) / 2
    found = tiny.apply(xl, p, *arguments, method='scores')
    np.testing.assert_allclose(found, scores, atol=2e-5)


def test_the_last_timescale_is_the_papers_and_not_tensor2tensors():
    # 10000^(510/512); tensor2tensor spaces them so that the last is 10000.
    np.testing.assert_allclose(1 / np.arcsin(table(2, 512)[1, 510]), 9646.6, atol=0.1)


@pytest.mark.parametrize('positions', tiny.here('positions'))
def test_heads_that_share_keys_are_heads_with_equal_ones(positions):
    shared = tiny.model(num_layers=1, positions=positions, num_kv_heads=1)
    variables = tiny.all_variables(shared)

    def repeated(path, x):
        is_shared = path[-2:] in (('key', 'kernel'), ('value', 'kernel'))
        return jnp.repeat(x, 2, 1) if is_shared else x

    each = flax.traverse_util.path_aware_map(repeated, variables)
    source, inputs = tiny.padded([[5, 6, 7, 1], [8, 1]]), tiny.padded([[2, 9, 4], [2]])
    found = shared.apply(variables, source, inputs)
    model = tiny.model(num_layers=1, positions=positions, num_kv_heads=2)
    np.testing.assert_allclose(found, model.apply(each, source, inputs), atol=1e-5)

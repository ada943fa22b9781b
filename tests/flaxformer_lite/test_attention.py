"""Tests of each attention's weights against its formula in float64."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from tiny import apply, float64, normal, normal32, softmax, variables

from flaxformer_lite.attention.flash import Flash
from flaxformer_lite.attention.sink import Sink
from flaxformer_lite.attention.softmax import Softmax
from flaxformer_lite.config import variants
from flaxformer_lite.kv_cache import BeamState, KeyValues
from flaxformer_lite.ops import use_reference


def keys_values(key_BSHK, value_BSHU, dtype=jnp.float32):
    index_1S = jnp.arange(key_BSHK.shape[1])[None]
    positions_BS = jnp.broadcast_to(index_1S, key_BSHK.shape[:2])

    def length_last(x):
        return jnp.moveaxis(jnp.asarray(x, dtype), 1, -1)

    keys, values = length_last(key_BSHK), length_last(value_BSHU)
    # Only `forgetting` reads them: log f = −0.1 for every token.
    features_BHS = jnp.full((*keys.shape[:2], keys.shape[-1]), -0.1)
    return KeyValues(keys, values, positions_BS, features_BHS)


def attend(
    q_BTHK, key_BSHK, value_BSHU, mask, *, bias=None, attention=None, dtype=jnp.float32
):
    """Applies an attention to arrays whose axis 1 is the length."""
    attention = attention or Softmax()
    index_1T = jnp.arange(q_BTHK.shape[1])[None]
    arguments = dict(
        positions_BT=jnp.broadcast_to(index_1T, q_BTHK.shape[:2]),
        mask_BHTS=jnp.asarray(mask),
        bias_BHTS=bias,
    )
    inputs = jnp.asarray(q_BTHK, dtype), keys_values(key_BSHK, value_BSHU, dtype)
    p = variables(attention, *inputs, **arguments)
    return apply(attention, p, *inputs, **arguments)


def attend_with_one_head(q, k, v, **options):
    """Returns the results of queries that see all keys."""
    arrays = (np.asarray(x)[None, :, None, :] for x in (q, k, v))
    mask = np.ones((1, 1, len(q), len(k)), bool)
    return attend(*arrays, mask, **options)[0, :, 0]


def test_weights_equal_the_formula_for_sizes_that_all_differ():
    b, t, s, h, k, u = 2, 3, 5, 4, 7, 6
    q, key = normal(b, t, h, k), normal(b, s, h, k, seed=1)
    value, bias = normal(b, s, h, u, seed=2), normal(1, h, t, s, seed=3)
    mask = np.random.default_rng(4).random((b, 1, t, s)) < 0.7
    mask[..., 0] = True
    expected = np.zeros((b, t, h, u))
    for i, j, n in np.ndindex(b, t, h):
        seen = np.flatnonzero(mask[i, 0, j])
        e = np.exp(
            [q[i, j, n] @ key[i, m, n] / np.sqrt(k) + bias[0, n, j, m] for m in seen]
        )
        expected[i, j, n] = (e / e.sum()) @ value[i, seen, n]
    y = attend(q, key, value, mask, bias=jnp.asarray(bias, jnp.float32))
    np.testing.assert_allclose(y, expected, atol=1e-5)


@pytest.mark.parametrize('name', ['softmax', 'blockwise'])
def test_scores_of_bfloat16_operands_are_scaled_in_float32(name):
    # Scaled by 1/√3 and rounded to bfloat16, the queries would differ by 0.5.
    options = dict(attention=variants.make('attention', name), dtype=jnp.bfloat16)
    y = attend_with_one_head([[128.0, 127.5, 0.0]], np.eye(3)[:2], np.eye(2), **options)
    first = 1 / (1 + np.exp(-0.5 / np.sqrt(3)))
    np.testing.assert_allclose(y[0], [first, 1 - first], rtol=2**-8)


def test_softmax_of_bfloat16_operands_is_float32():
    # bfloat16 can't represent 64.25: rounded, both scores were 64 and the weights even.
    q, key = np.array([[1.0, 0.125]]), np.array([[64.0, 2.0], [64.0, 0.0]])
    y = attend_with_one_head(q * np.sqrt(2), key, np.eye(2), dtype=jnp.bfloat16)
    first = np.exp(0.25) / (1 + np.exp(0.25))
    assert y.dtype == jnp.float32
    np.testing.assert_allclose(y[0], [first, 1 - first], atol=0.01)


def test_masked_scores_have_zero_weight():
    # Scores (5, 0, 0) times a mask of (1, 0, 0) would give (.987, .007, .007).
    q, key = jnp.full((1, 1, 1, 1), 5.0), jnp.eye(3)[None, :, None, :1]
    mask = np.array([[[[True, False, False]]]])
    y = attend(q, key, np.eye(3)[None, :, None], mask)
    np.testing.assert_array_equal(y[0, 0, 0], [1, 0, 0])


def weights_with_sink(s, sink):
    e = np.exp(s)
    return e / (np.exp(sink)[None, :, None, None] + e.sum(-1, keepdims=True))


def differential_weights(p, scores):
    # Outside of a stack, the layer is the first, where λ_init = 0.2.
    exp = np.exp((p['lambda_query'] * p['lambda_key']).sum(-1))
    maps = softmax(scores)
    difference = maps[:, :1] - (exp[0] - exp[1] + 0.2) * maps[:, 1:]
    return np.concatenate([difference, difference], 1)


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def dots(q, key):
    return np.einsum('bthk,bshk->bhts', q, key)


# Each variant's weights in float64, by its parameters; n keys are seen by every query.
REFERENCE_FORMULAS = {
    'softmax(scale=False)': lambda p, q, k: softmax(dots(q, k)),
    'softmax(scale=0.3)': lambda p, q, k: softmax(0.3 * dots(q, k)),
    'softmax(temperature=2.5)': lambda p, q, k: softmax(dots(q, k) / 2 / 2.5),
    'softmax(cap=0.7)': lambda p, q, k: softmax(0.7 * np.tanh(dots(q, k) / 2 / 0.7)),
    'additive': lambda p, q, k: softmax(
        np.einsum(
            'bhtsa,ha->bhts',
            np.tanh(
                np.einsum('bthk,hka->bhta', q, p['query'])[:, :, :, None]
                + np.einsum('bshk,hka->bhsa', k, p['key'])[:, :, None]
            ),
            p['energy'],
        )
    ),
    'bilinear': lambda p, q, k: softmax(
        np.einsum('bthi,hij,bshj->bhts', q, p['form'], k) / 2
    ),
    'cosine': lambda p, q, k: softmax(
        dots(unit(q), unit(k)) * p['temperature'][None, :, None, None]
    ),
    'sigmoid': lambda p, q, k: 1 / (1 + np.exp(-(dots(q, k) / 2 - np.log(5)))),
    'relu': lambda p, q, k: np.maximum(dots(q, k) / 2, 0) / 5,
    'talking_heads': lambda p, q, k: np.einsum(
        'bits,ij->bjts',
        softmax(np.einsum('bhts,hi->bits', dots(q, k) / 2, p['before'])),
        p['after'],
    ),
    'differential': lambda p, q, k: differential_weights(p, dots(q, k) / 2),
    # It subtracts the results of heads.
    'differential_v2': lambda p, q, k: softmax(dots(q, k) / 2),
    'forgetting': lambda p, q, k: softmax(dots(q, k) / 2 - 0.1 * np.arange(5)[::-1]),
    'gated': lambda p, q, k: softmax(dots(q, k) / 2),
    'sink': lambda p, q, k: weights_with_sink(dots(q, k) / 2, p['sink']),
    'sink(learned=False, scale=0.3, cap=0.7, temperature=2.5)': lambda p, q, k: (
        weights_with_sink(0.7 * np.tanh(0.3 * dots(q, k) / 0.7) / 2.5, np.zeros(2))
    ),
    'linear': lambda p, q, k: (lambda s: s / s.sum(-1, keepdims=True))(
        dots(*(np.where(x > 0, x + 1, np.exp(x)) for x in (q, k)))
    ),
    'blockwise(block=2)': lambda p, q, k: softmax(dots(q, k) / 2),
    'blockwise(block=2, scale=0.3, cap=0.7, temperature=2.5)': lambda p, q, k: softmax(
        0.7 * np.tanh(0.3 * dots(q, k) / 0.7) / 2.5
    ),
    'local(window=9, scale=0.3, cap=0.7, temperature=2.5)': lambda p, q, k: softmax(
        0.7 * np.tanh(0.3 * dots(q, k) / 0.7) / 2.5
    ),
}


@pytest.mark.parametrize('text', REFERENCE_FORMULAS)
def test_weights_equal_the_reference_formula(text):
    attention = variants.make('attention', text)
    q, key, value = (normal(2, n, 2, d, seed=i) for i, (n, d) in enumerate(SHAPES))
    inputs = jnp.asarray(q, jnp.float32), keys_values(key, value)
    mask_BHTS = jnp.ones((1, 1, 3, 5), bool)
    near_BT = jnp.broadcast_to(jnp.arange(3)[None], (2, 3))
    given = dict(positions_BT=near_BT, mask_BHTS=mask_BHTS)
    p = variables(attention, *inputs, **given)
    y = apply(attention, p, *inputs, **given)
    weights = REFERENCE_FORMULAS[text](float64(p.get('params', {})), q, key)
    expected = np.einsum('bhts,bshu->bthu', weights, value)
    np.testing.assert_allclose(y, expected, atol=1e-5)

    # An attention that hides distant keys declares it.
    far = apply(attention, p, *inputs, **given | {'positions_BT': near_BT + 1000})
    assert np.array_equal(y, far) != attention.by_distance


SHAPES = (3, 4), (5, 4), (5, 6)  # number and width of queries, keys and values


def test_every_attention_has_a_reference_formula():
    named = {text.split('(')[0] for text in REFERENCE_FORMULAS} | {'flash'}
    assert set(variants.names('attention')) == named


def test_temperature_zero_shares_weight_among_the_largest_scores():
    attention = Softmax(temperature=0.0)
    key = [[2.0], [4.0], [4.0]]
    y = attend_with_one_head([[1.0]], key, np.eye(3), attention=attention)
    np.testing.assert_array_equal(y[0], [0, 0.5, 0.5])


def test_dropout_of_weights_is_independent():
    values = np.tile(np.eye(64)[None, :, None], (2, 1, 3, 1))
    zeros = jnp.zeros((2, 64, 3, 2))
    arguments = dict(
        positions_BT=jnp.arange(64)[None],
        mask_BHTS=jnp.ones((1, 1, 64, 64), bool),
        rngs={'dropout': jax.random.key(0)},
    )
    attention = Softmax(dropout=0.5)
    y = apply(attention, {}, zeros, keys_values(zeros, values), **arguments)
    y = np.asarray(y)
    assert set(np.unique(y)) == {0.0, 2 / 64}
    assert abs((y == 0).mean() - 0.5) < 5 * 0.5 / np.sqrt(y.size)
    assert len(np.unique(y.reshape(-1, 64) == 0, axis=0)) == 2 * 64 * 3


def test_sink_takes_weight_from_keys():
    q, key, value = (normal32(1, 3, 2, 4, seed=i) for i in range(3))
    mask = jnp.ones((1, 1, 3, 3), bool)
    arguments = dict(positions_BT=jnp.arange(3)[None], mask_BHTS=mask)

    def with_sink(logit):
        params = {'params': {'sink': jnp.array([logit, 0.0])}}
        inputs = q, keys_values(key, value)
        return apply(Sink(), params, *inputs, **arguments)[0, :, 0]

    np.testing.assert_array_equal(with_sink(200.0), np.zeros((3, 4)))
    expected = attend(q, key, value, mask)[0, :, 0]
    np.testing.assert_allclose(with_sink(-200.0), expected, atol=1e-6)


@pytest.mark.parametrize(
    ('text', 'after'), [('local(window=2)', 2), ('local(window=2, window_after=4)', 4)]
)
def test_window_hides_keys_further_away_on_either_side(text, after):
    mask = np.ones((1, 1, 6, 6), bool)
    ahead = np.arange(6)[None] - np.arange(6)[:, None]
    near = (-2 < ahead) & (ahead < after)
    arrays = [normal(1, 6, 2, 4, seed=i) for i in range(3)]
    found = attend(*arrays, mask, attention=variants.make('attention', text))
    np.testing.assert_array_equal(found, attend(*arrays, mask & near))


@pytest.mark.ci
@pytest.mark.parametrize('block', [2, 64])
def test_blocks_change_neither_results_nor_gradients(block):
    arrays = tuple(normal32(2, 7, 2, 4, seed=i) for i in range(3))
    mask = np.random.default_rng(4).random((2, 1, 7, 7)) < 0.6
    bias = normal32(1, 2, 7, 7, seed=5)

    def results(attention):
        def loss(arrays, bias):
            y = attend(*arrays, mask, bias=bias, attention=attention)
            return (y * jnp.arange(4.0)[None, None, None]).sum(), y

        return jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(arrays, bias)

    found = results(variants.make('attention', f'blockwise(block={block})'))
    tiny.assert_close(found, results(Softmax()), atol=1e-5)


@pytest.mark.ci
def test_gradients_of_blocks_in_bfloat16_are_as_exact_as_those_of_softmax():
    q = 100 * normal(2, 6, 2, 8)
    key, value = normal(2, 6, 2, 8, seed=1), 10 + 0.1 * normal(2, 6, 2, 8, seed=2)
    arrays = [np.float32(jnp.bfloat16(x)) for x in (q, key, value)]
    mask = np.ones((2, 1, 6, 6), bool)
    direction = normal32(2, 6, 2, 8, seed=3)

    def gradients(attention, dtype):
        def loss(arrays):
            y = attend(*arrays, mask, attention=attention, dtype=dtype)
            return (y * direction).sum()

        return float64(jax.jit(jax.grad(loss))(arrays))

    def errors(attention):
        found = gradients(attention, jnp.bfloat16)
        return [np.linalg.norm(x - y) for x, y in zip(found, exact, strict=True)]

    exact = gradients(Softmax(), jnp.float32)
    blockwise = errors(variants.make('attention', 'blockwise(block=4)'))
    for error, of_softmax in zip(blockwise, errors(Softmax()), strict=True):
        assert error < 3 * of_softmax


def causal_linear_attention(q, key, value):
    """Returns causal linear attention in float64, where φ does not underflow."""
    s = REFERENCE_FORMULAS['linear']({}, q, key) * np.tri(q.shape[1])
    return np.einsum('bhts,bshu->bthu', s / s.sum(-1, keepdims=True), value)


# φ(x) = exp(x) where x < 0: float32 rounds exp(x) − 1 to −1 below −17, and exp(x) to 0
# below −104.
LEVELS = (-20, 0), (0, -20), (-120, -200)


def arrays_far_below_zero(q_level, key_level):
    q, key = normal(2, 5, 2, 4) + q_level, normal(2, 5, 2, 4, seed=1) + key_level
    key[:, 2] -= 3.0
    return q, key, normal(2, 5, 2, 6, seed=2)


def test_sums_of_linear_attention_are_exact_for_large_negative_features():
    attention = variants.make('attention', 'linear')

    @jax.jit
    def decode(q, kv):
        first = jax.tree.map(lambda x: x[..., :2], kv)
        valid_BS = jnp.asarray([[True, False]] * 2)
        sums = attention.init_cache(first, valid_BS).allocate(1, 3)
        outputs = []
        for i in range(2, 5):
            parent_BN = jnp.zeros((2, 1), jnp.int32)
            beam = BeamState(i, parent_BN, jnp.ones((2, 1, 5), bool))
            new = jax.tree.map(lambda x, i=i: x[..., i : i + 1], kv)
            sums, visible = sums.append(new, beam)
            arguments = dict(
                positions_BT=beam.parent_BN, mask_BHTS=beam.visible_BNS[:, None]
            )
            outputs.append(attention.apply({}, q[:, i : i + 1], visible, **arguments))
        return jnp.concatenate(outputs, 1)

    for levels in LEVELS:
        q, key, value = arrays_far_below_zero(*levels)
        y = decode(jnp.asarray(q, jnp.float32), keys_values(key, value))
        seen = [0, 2, 3, 4]
        expected = causal_linear_attention(q[:, seen], key[:, seen], value[:, seen])
        np.testing.assert_allclose(y, expected[:, 1:], atol=1e-4)


def test_linear_attention_is_differentiable_for_large_negative_features():
    attention = variants.make('attention', 'linear')
    mask = np.tri(5, dtype=bool)[None, None]
    direction = normal(2, 5, 2, 6, seed=3)

    @jax.jit
    def results(*arrays):
        def loss(*arrays):
            y = attend(*arrays, mask, attention=attention)
            return (direction * y).sum(), y

        return jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(*arrays)

    for levels in LEVELS:
        arrays = arrays_far_below_zero(*levels)
        gradients, y = results(*(jnp.asarray(x, jnp.float32) for x in arrays))
        np.testing.assert_allclose(y, causal_linear_attention(*arrays), atol=1e-4)
        for i, gradient in enumerate(gradients):
            for at in np.ndindex(1, 5, 1, 2):
                step = np.zeros_like(arrays[i])
                step[at] = 1e-5
                ends = (
                    [*arrays[:i], arrays[i] + d, *arrays[i + 1 :]]
                    for d in (step, -step)
                )
                above, below = (
                    (direction * causal_linear_attention(*end)).sum() for end in ends
                )
                slope = (above - below) / 2e-5
                np.testing.assert_allclose(gradient[at], slope, atol=1e-3)


def test_attention_without_stored_weights_rejects_options_that_act_on_weights():
    for text in (
        'blockwise(dropout=0.1)',
        'blockwise(temperature=0.0)',
        'flash(dropout=0.1)',
        'flash(cap=50.0)',
        'flash(temperature=0.0)',
    ):
        argument = text.partition('(')[2].rstrip(')')
        with pytest.raises(ValueError, match=f'{argument} needs an attention that'):
            variants.make('attention', text)


@pytest.mark.parametrize('settings', [{}, dict(scale=0.5, temperature=2.0)], ids=str)
def test_flash_attention_equals_softmax(settings):
    arrays = [normal(2, 5, 2, 8, seed=i) for i in range(3)]
    mask = np.random.default_rng(4).random((2, 1, 5, 5)) < 0.5
    mask[0, 0, 2] = False
    arguments = dict(bias=normal32(1, 2, 5, 5, seed=3), dtype=jnp.bfloat16)
    softmax, flash = Softmax(**settings), Flash(**settings)
    expected = attend(*arrays, mask, **arguments, attention=softmax)
    # The formula that cuDNN is the fast version of; a GPU runs cuDNN itself.
    on_gpu = jax.default_backend() == 'gpu'
    with contextlib.nullcontext() if on_gpu else use_reference():
        y = attend(*arrays, mask, **arguments, attention=flash)
    assert y.dtype == jnp.float32
    np.testing.assert_array_equal(y[0, 2], 0.0)
    # Softmax has float32 weights, so two roundings to bfloat16 bound the difference.
    np.testing.assert_allclose(y, expected, atol=2 * 2**-8 * np.abs(arrays[2]).max())


def runs_here(name):
    variant = variants.FOLDERS['attention'].find(name).cls
    return getattr(variant, 'backend', None) in (None, jax.default_backend())


ATTENTIONS = list(filter(runs_here, variants.names('attention')))
# The others change scores only.
KINDS = [x for x in ATTENTIONS if x not in ('additive', 'bilinear', 'cosine')]


@pytest.mark.ci
@pytest.mark.parametrize('name', tiny.cases(ATTENTIONS, fast=KINDS))
def test_query_without_keys_gets_zeros_and_finite_gradients(name):
    # −inf alone would give NaN; a large negative number, the mean of all values.
    attention = variants.make('attention', name)
    mask = np.array([[True, True, False], [False, False, False]])[None, None]

    def total(*arrays):
        y = attend(*arrays, mask, attention=attention)
        return 1e6 * y.sum(), y

    arguments = tuple(normal32(1, n, 2, 4, seed=n) for n in (2, 3, 3))
    gradients, y = jax.jit(jax.grad(total, (0, 1, 2), has_aux=True))(*arguments)
    np.testing.assert_array_equal(y[:, 1], 0.0)
    assert np.abs(y[:, 0]).max() > 0
    assert all(np.isfinite(g).all() for g in gradients)
    np.testing.assert_array_equal(gradients[0][:, 1], 0.0)
    np.testing.assert_array_equal(gradients[2][:, 2], 0.0)


@pytest.mark.parametrize('name', tiny.cases(ATTENTIONS, fast=('softmax', 'linear')))
def test_keys_and_values_in_float32_give_the_same_results(name):
    attention = variants.make('attention', name)
    arrays = [normal(1, n, 2, 4, seed=n) for n in (2, 3, 3)]
    q_BTHK, kv = jnp.asarray(arrays[0], jnp.bfloat16), keys_values(*arrays[1:])
    arguments = dict(
        positions_BT=jnp.arange(2)[None], mask_BHTS=jnp.ones((1, 1, 2, 3), bool)
    )

    def results(dtype):
        stored = kv.replace(
            key_BGKS=kv.key_BGKS.astype(jnp.bfloat16).astype(dtype),
            value_BGUS=kv.value_BGUS.astype(jnp.bfloat16).astype(dtype),
        )
        p = variables(attention, q_BTHK, stored, **arguments)
        return apply(attention, p, q_BTHK, stored, **arguments)

    expected = results(jnp.bfloat16)
    np.testing.assert_allclose(results(jnp.float32), expected, rtol=1e-6, atol=1e-6)

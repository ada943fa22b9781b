"""Tests of each attention's weights against its formula in float64."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from tiny import apply, float64, variables

from flaxformer_lite.attention.flash import FlashAttention
from flaxformer_lite.attention.sink import SinkAttention
from flaxformer_lite.attention.softmax import SoftmaxAttention
from flaxformer_lite.config import variants
from flaxformer_lite.generation import DecodingOptions, as_strategy, decode_rows
from flaxformer_lite.kv_cache import (
    BeamState,
    Cache,
    KeyValues,
    with_float32_slots,
)
from flaxformer_lite.ops import use_reference
from flaxformer_lite.training.train_step import init_variables


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
    q_BTHK,
    key_BSHK,
    value_BSHU,
    mask,
    *,
    bias=None,
    attention=None,
    dtype=jnp.float32,
    seed=0,
):
    """Applies any variant to arrays whose axis 1 is the length."""
    if attention is None:
        attention = SoftmaxAttention()
    index_1T = jnp.arange(q_BTHK.shape[1])[None]
    arguments = dict(
        positions_BT=jnp.broadcast_to(index_1T, q_BTHK.shape[:2]),
        mask_BHTS=jnp.asarray(mask),
        bias_BHTS=bias,
    )
    inputs = jnp.asarray(q_BTHK, dtype), keys_values(key_BSHK, value_BSHU, dtype)
    p = variables(attention, *inputs, **arguments, seed=seed)
    return apply(attention, p, *inputs, **arguments)


def one_head(q, k, v, mask):
    y = attend(
        *(np.asarray(x)[None, :, None, :] for x in (q, k, v)),
        np.asarray(mask)[None, None],
    )
    return y[0, :, 0]


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def test_is_its_formula_where_no_two_sizes_agree():
    b, t, s, h, k, u = 2, 3, 5, 4, 7, 6
    q, key, value = (
        random(b, t, h, k),
        random(b, s, h, k, seed=1),
        random(b, s, h, u, seed=2),
    )
    bias = random(1, h, t, s, seed=3)
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
def test_scores_are_scaled_in_float32_for_bfloat16_operands(name):
    # Scaled by 1/√3 and rounded to bfloat16, the queries would differ by 0.5.
    q, key = np.array([128.0, 127.5, 0.0]), np.eye(3)[:2]
    y = attend(
        q[None, None, None],
        key[None, :, None],
        np.eye(2)[None, :, None],
        np.ones((1, 1, 1, 2), bool),
        attention=variants.make('attention', name),
        dtype=jnp.bfloat16,
    )
    first = 1 / (1 + np.exp(-0.5 / np.sqrt(3)))
    np.testing.assert_allclose(y[0, 0, 0], [first, 1 - first], rtol=2**-8)


def test_a_mask_takes_scores_away_rather_than_making_them_zero():
    # Scores (5, 0, 0) times a mask of (1, 0, 0) would give (.987, .007, .007).
    y = one_head([[5.0]], [[1.0], [0.0], [0.0]], np.eye(3), [[True, False, False]])
    np.testing.assert_array_equal(y, [[1, 0, 0]])


def test_softmax_is_float32_for_bfloat16_operands():
    # 64.25 is no bfloat16: rounded to one, both scores were 64 and the weights even.
    q, key = np.array([1.0, 0.125]), np.array([[64.0, 2.0], [64.0, 0.0]])
    q, key = q[None, None, None] * np.sqrt(2), key[None, :, None]
    y = attend(
        q,
        key,
        np.eye(2)[None, :, None],
        np.ones((1, 1, 1, 2), bool),
        dtype=jnp.bfloat16,
    )
    even_up = np.exp(0.25) / (1 + np.exp(0.25))
    assert y.dtype == jnp.float32
    np.testing.assert_allclose(y[0, 0, 0], [even_up, 1 - even_up], atol=0.01)


def softmax64(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def softmax_and_sink64(s, sink):
    e = np.exp(s)
    return e / (np.exp(sink)[None, :, None, None] + e.sum(-1, keepdims=True))


def differential64(p, scores):
    # Outside of a stack, the layer is the first, where λ_init = 0.2.
    exp = np.exp((p['lambda_query'] * p['lambda_key']).sum(-1))
    maps = softmax64(scores)
    difference = maps[:, :1] - (exp[0] - exp[1] + 0.2) * maps[:, 1:]
    return np.concatenate([difference, difference], 1)


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def dots(q, key):
    return np.einsum('bthk,bshk->bhts', q, key)


# Each variant's weights in float64, by its parameters; n keys are seen by every query.
LAWS = {
    'softmax(scale=False)': lambda p, q, k: softmax64(dots(q, k)),
    'softmax(scale=0.3)': lambda p, q, k: softmax64(0.3 * dots(q, k)),
    'softmax(temperature=2.5)': lambda p, q, k: softmax64(dots(q, k) / 2 / 2.5),
    'softmax(cap=0.7)': lambda p, q, k: softmax64(0.7 * np.tanh(dots(q, k) / 2 / 0.7)),
    'additive': lambda p, q, k: softmax64(
        np.einsum(
            'bhtsa,ha->bhts',
            np.tanh(
                np.einsum('bthk,hka->bhta', q, p['query'])[:, :, :, None]
                + np.einsum('bshk,hka->bhsa', k, p['key'])[:, :, None]
            ),
            p['energy'],
        )
    ),
    'bilinear': lambda p, q, k: softmax64(
        np.einsum('bthi,hij,bshj->bhts', q, p['form'], k) / 2
    ),
    'cosine': lambda p, q, k: softmax64(
        dots(unit(q), unit(k)) * p['temperature'][None, :, None, None]
    ),
    'sigmoid': lambda p, q, k: 1 / (1 + np.exp(-(dots(q, k) / 2 - np.log(5)))),
    'relu': lambda p, q, k: np.maximum(dots(q, k) / 2, 0) / 5,
    'talking_heads': lambda p, q, k: np.einsum(
        'bits,ij->bjts',
        softmax64(np.einsum('bhts,hi->bits', dots(q, k) / 2, p['before'])),
        p['after'],
    ),
    'differential': lambda p, q, k: differential64(p, dots(q, k) / 2),
    # Its differences are of the heads' results.
    'differential_v2': lambda p, q, k: softmax64(dots(q, k) / 2),
    'forgetting': lambda p, q, k: softmax64(dots(q, k) / 2 - 0.1 * np.arange(5)[::-1]),
    'gated': lambda p, q, k: softmax64(dots(q, k) / 2),
    'sink': lambda p, q, k: softmax_and_sink64(dots(q, k) / 2, p['sink']),
    'sink(learned=False, scale=0.3, cap=0.7, temperature=2.5)': lambda p, q, k: (
        softmax_and_sink64(0.7 * np.tanh(0.3 * dots(q, k) / 0.7) / 2.5, np.zeros(2))
    ),
    'linear': lambda p, q, k: (lambda s: s / s.sum(-1, keepdims=True))(
        dots(*(np.where(x > 0, x + 1, np.exp(x)) for x in (q, k)))
    ),
    'blockwise(block=2)': lambda p, q, k: softmax64(dots(q, k) / 2),
    'blockwise(block=2, scale=0.3, cap=0.7, temperature=2.5)': lambda p, q, k: (
        softmax64(0.7 * np.tanh(0.3 * dots(q, k) / 0.7) / 2.5)
    ),
    'local(window=9, scale=0.3, cap=0.7, temperature=2.5)': lambda p, q, k: softmax64(
        0.7 * np.tanh(0.3 * dots(q, k) / 0.7) / 2.5
    ),
}


@pytest.mark.parametrize('text', LAWS)
def test_weights_are_the_formulas(text):
    attention = variants.make('attention', text)
    q, key, value = (
        random(2, 3, 2, 4),
        random(2, 5, 2, 4, seed=1),
        random(2, 5, 2, 6, seed=2),
    )
    mask = np.ones((1, 1, 3, 5), bool)
    inputs = jnp.asarray(q, jnp.float32), keys_values(key, value)
    arguments = dict(
        positions_BT=jnp.broadcast_to(jnp.arange(3)[None], (2, 3)),
        mask_BHTS=jnp.asarray(mask),
    )
    p = variables(attention, *inputs, **arguments)
    y = apply(attention, p, *inputs, **arguments)
    weights = LAWS[text](float64(p.get('params', {})), q, key)
    np.testing.assert_allclose(
        y, np.einsum('bhts,bshu->bthu', weights, value), atol=1e-5
    )


def test_every_attention_has_a_law():
    named = {text.split('(')[0] for text in LAWS} | {'flash'}
    assert set(variants.names('attention')) == named


def test_no_temperature_takes_the_likeliest_and_shares_evenly_among_ties():
    attention = SoftmaxAttention(temperature=0.0)
    q, key = [[1.0]], [[2.0], [4.0], [4.0], [9.0]]
    mask = np.array([[True, True, True, False]])[None, None]
    arrays = (np.asarray(x)[None, :, None] for x in (q, key, np.eye(4)))
    y = attend(*arrays, mask, attention=attention)
    np.testing.assert_array_equal(y[0, 0, 0], [0, 0.5, 0.5, 0])


def test_dropout_of_weights_is_each_weights_own():
    values = np.tile(np.eye(64)[None, :, None], (2, 1, 3, 1))
    zeros = np.zeros((2, 64, 3, 2))
    kv = keys_values(zeros, values)
    mask = jnp.ones((1, 1, 64, 64), bool)
    arguments = dict(positions_BT=jnp.arange(64)[None], mask_BHTS=mask)
    rngs = {'dropout': jax.random.key(0)}
    y = apply(
        SoftmaxAttention(dropout=0.5),
        {},
        jnp.asarray(zeros),
        kv,
        **arguments,
        rngs=rngs,
    )
    y = np.asarray(y)
    assert set(np.unique(y)) == {0.0, 2 / 64}
    assert abs((y == 0).mean() - 0.5) < 5 * 0.5 / np.sqrt(y.size)
    assert len(np.unique(y.reshape(-1, 64) == 0, axis=0)) == 2 * 64 * 3


def test_a_high_sink_takes_all_weight_and_a_low_one_none():
    q, key, value = (jnp.asarray(random(1, 3, 2, 4, seed=i)) for i in range(3))
    mask = jnp.ones((1, 1, 3, 3), bool)
    arguments = dict(positions_BT=jnp.arange(3)[None], mask_BHTS=mask)

    def with_sink(logit):
        params = {'params': {'sink': jnp.array([logit, 0.0])}}
        inputs = jnp.asarray(q, jnp.float32), keys_values(key, value)
        return apply(SinkAttention(), params, *inputs, **arguments)[0, :, 0]

    np.testing.assert_array_equal(with_sink(200.0), np.zeros((3, 4)))
    expected = attend(q, key, value, mask)[0, :, 0]
    np.testing.assert_allclose(with_sink(-200.0), expected, atol=1e-6)


@pytest.mark.parametrize(
    ('text', 'after'), [('local(window=2)', 2), ('local(window=2, window_after=4)', 4)]
)
def test_a_window_hides_what_is_further_away_on_either_side(text, after):
    attention = variants.make('attention', text)
    mask = np.ones((1, 1, 6, 6), bool)
    ahead = np.arange(6)[None] - np.arange(6)[:, None]
    near = (-2 < ahead) & (ahead < after)
    arrays = [random(1, 6, 2, 4, seed=i) for i in range(3)]
    expected = attend(*arrays, mask & near)
    np.testing.assert_array_equal(attend(*arrays, mask, attention=attention), expected)


@pytest.mark.parametrize('block', [2, 3, 64])
def test_blocks_change_neither_results_nor_gradients(block):
    arrays = tuple(
        jnp.asarray(random(2, 7, 2, 4, seed=i), jnp.float32) for i in range(3)
    )
    mask = np.random.default_rng(4).random((2, 1, 7, 7)) < 0.6
    bias = jnp.asarray(random(1, 2, 7, 7, seed=5), jnp.float32)

    def both(attention):
        def loss(arrays, bias):
            y = attend(*arrays, mask, bias=bias, attention=attention)
            return (y * jnp.arange(4.0)[None, None, None]).sum(), y

        return jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(arrays, bias)

    found = both(variants.make('attention', f'blockwise(block={block})'))
    for one, other in zip(
        *map(jax.tree.leaves, (found, both(SoftmaxAttention()))), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_gradients_of_blocks_in_bfloat16_are_as_exact_as_those_of_softmax():
    q = 100 * random(2, 6, 2, 8)
    key, value = random(2, 6, 2, 8, seed=1), 10 + 0.1 * random(2, 6, 2, 8, seed=2)
    arrays = [np.float32(jnp.bfloat16(x)) for x in (q, key, value)]
    mask = np.ones((2, 1, 6, 6), bool)
    direction = jnp.asarray(random(2, 6, 2, 8, seed=3), jnp.float32)

    def gradients(attention, dtype):
        def loss(arrays):
            y = attend(*arrays, mask, attention=attention, dtype=dtype)
            return (y * direction).sum()

        return jax.jit(jax.grad(loss))(arrays)

    def errors(attention):
        found = gradients(attention, jnp.bfloat16)
        return [
            np.linalg.norm(np.float64(one) - np.float64(other))
            for one, other in zip(found, exact, strict=True)
        ]

    exact = gradients(SoftmaxAttention(), jnp.float32)
    blockwise = variants.make('attention', 'blockwise(block=4)')
    for error, of_softmax in zip(
        errors(blockwise), errors(SoftmaxAttention()), strict=True
    ):
        assert error < 3 * of_softmax


def linear64(q, key, value):
    """Returns causal linear attention in float64, where φ does not underflow."""
    s = LAWS['linear']({}, q, key) * np.tri(q.shape[1])
    return np.einsum('bhts,bshu->bthu', s / s.sum(-1, keepdims=True), value)


# φ(x) = exp(x) where x < 0: exp(x) − 1 is −1 from −17 on, and exp(x) is no float32 from
# −104 on.
BELOW = pytest.mark.parametrize(
    ('q_level', 'key_level'), [(-20, 0), (0, -20), (-120, -200)]
)


def far_below(q_level, key_level):
    q, key = random(2, 5, 2, 4) + q_level, random(2, 5, 2, 4, seed=1) + key_level
    key[:, 2] -= 3.0
    return q, key, random(2, 5, 2, 6, seed=2)


@BELOW
def test_linears_sums_hold_as_far_below_zero(q_level, key_level):
    attention = variants.make('attention', 'linear')
    q, key, value = far_below(q_level, key_level)
    kv = keys_values(key, value)

    @jax.jit
    def decoded(q, kv):
        first = jax.tree.map(lambda x: x[..., :2], kv)
        valid_BS = jnp.asarray([[True, False]] * 2)
        running = attention.init_cache(first, valid_BS).allocate(1, 3)
        outputs = []
        for i in range(2, 5):
            parent_BN = jnp.zeros((2, 1), jnp.int32)
            beam = BeamState(i, parent_BN, jnp.ones((2, 1, 5), bool))
            now = jax.tree.map(lambda x, i=i: x[..., i : i + 1], kv)
            running, seen = running.append(now, beam)
            arguments = dict(
                positions_BT=beam.parent_BN, mask_BHTS=beam.visible_BNS[:, None]
            )
            outputs.append(attention.apply({}, q[:, i : i + 1], seen, **arguments))
        return jnp.concatenate(outputs, 1)

    y = decoded(jnp.asarray(q, jnp.float32), kv)
    seen = [0, 2, 3, 4]
    expected = linear64(q[:, seen], key[:, seen], value[:, seen])
    np.testing.assert_allclose(y, expected[:, 1:], atol=1e-4)


@pytest.mark.parametrize(
    ('name', 'argument'),
    [
        ('blockwise', 'dropout=0.1'),
        ('blockwise', 'temperature=0.0'),
        ('flash', 'dropout=0.1'),
        ('flash', 'cap=50.0'),
        ('flash', 'temperature=0.0'),
    ],
)
def test_what_holds_no_weights_refuses_what_acts_on_them(name, argument):
    with pytest.raises(
        ValueError, match=f'{argument} needs an attention that computes'
    ):
        variants.make('attention', f'{name}({argument})')


@pytest.mark.parametrize('settings', [{}, dict(scale=0.5, temperature=2.0)], ids=str)
def test_flash_is_softmax(settings):
    arrays = [random(2, 5, 2, 8, seed=i) for i in range(3)]
    bias = jnp.asarray(random(1, 2, 5, 5, seed=3), jnp.float32)
    mask = np.random.default_rng(4).random((2, 1, 5, 5)) < 0.5
    mask[0, 0, 2] = False
    arguments = dict(bias=bias, dtype=jnp.bfloat16)
    softmax, flash = SoftmaxAttention(**settings), FlashAttention(**settings)
    expected = attend(*arrays, mask, **arguments, attention=softmax)
    # The formula that cuDNN is the fast version of; a GPU runs cuDNN itself.
    on_gpu = jax.default_backend() == 'gpu'
    with contextlib.nullcontext() if on_gpu else use_reference():
        y = attend(*arrays, mask, **arguments, attention=flash)
    assert y.dtype == jnp.float32
    np.testing.assert_array_equal(y[0, 2], 0.0)
    # Of float32 weights, so closer to them than two roundings to bfloat16.
    np.testing.assert_allclose(y, expected, atol=2 * 2**-8 * np.abs(arrays[2]).max())


def runs_here(name):
    variant = variants.FOLDERS['attention'].find(name).cls
    return getattr(variant, 'backend', None) in (None, jax.default_backend())


every = pytest.mark.parametrize(
    'name', [*filter(runs_here, variants.names('attention'))]
)


@every
def test_a_query_that_sees_no_key_gets_zeros_and_finite_gradients(name):
    # −inf alone would give NaN; a large negative number, the mean of all values.
    attention = variants.make('attention', name)
    mask = np.array([[True, True, False], [False, False, False]])[None, None]

    def total(*arrays):
        y = attend(*arrays, mask, attention=attention)
        return 1e6 * y.sum(), y

    arguments = tuple(
        jnp.asarray(random(1, n, 2, 4, seed=n), jnp.float32) for n in (2, 3, 3)
    )
    gradients, y = jax.jit(jax.grad(total, (0, 1, 2), has_aux=True))(*arguments)
    np.testing.assert_array_equal(y[:, 1], 0.0)
    assert np.abs(y[:, 0]).max() > 0
    assert all(np.isfinite(g).all() for g in gradients)
    np.testing.assert_array_equal(gradients[0][:, 1], 0.0)
    np.testing.assert_array_equal(gradients[2][:, 2], 0.0)


@every
def test_an_attention_whose_mask_goes_by_distance_says_so(name):
    attention = variants.make('attention', name)
    arrays = [random(1, 3, 2, 4, seed=i) for i in range(3)]
    q_BTHK, kv = jnp.asarray(arrays[0], jnp.float32), keys_values(*arrays[1:])
    near_BT = jnp.arange(3)[None]
    given = dict(mask_BHTS=jnp.ones((1, 1, 3, 3), bool))
    p = variables(attention, q_BTHK, kv, positions_BT=near_BT, **given)
    near, far = (
        apply(attention, p, q_BTHK, kv, positions_BT=positions_BT, **given)
        for positions_BT in (near_BT, near_BT + 1000)
    )
    assert np.array_equal(near, far) != attention.by_distance


@every
def test_keys_and_values_may_be_kept_as_float32(name):
    attention = variants.make('attention', name)
    arrays = [random(1, n, 2, 4, seed=n) for n in (2, 3, 3)]
    q_BTHK, kv = jnp.asarray(arrays[0], jnp.bfloat16), keys_values(*arrays[1:])
    arguments = dict(
        positions_BT=jnp.arange(2)[None], mask_BHTS=jnp.ones((1, 1, 2, 3), bool)
    )

    def attended(dtype):
        kept = kv.replace(
            key_BGKS=kv.key_BGKS.astype(jnp.bfloat16).astype(dtype),
            value_BGUS=kv.value_BGUS.astype(jnp.bfloat16).astype(dtype),
        )
        p = variables(attention, q_BTHK, kept, **arguments)
        return apply(attention, p, q_BTHK, kept, **arguments)

    expected = attended(jnp.bfloat16)
    np.testing.assert_allclose(attended(jnp.float32), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize('are_float32', [False, True])
def test_a_cache_of_bfloat16_has_what_was_written_to_it(are_float32):
    def tokens(number, seed):
        shape = 2, number, 3, 4
        arrays = (random(*shape, seed=seed + i) for i in range(2))
        return keys_values(*arrays, dtype=jnp.bfloat16)

    prefix, new = tokens(2, seed=0), tokens(1, seed=2)
    step = jnp.int32(1)
    beam = BeamState(step, jnp.zeros((2, 1), jnp.int32), jnp.ones((2, 1, 3), bool))
    cache = Cache.starting_with(prefix)
    if are_float32:
        cache = with_float32_slots(cache)
    cache = cache.allocate(1, 3)
    cache, everything = jax.jit(Cache.append)(cache, new, beam)
    assert everything.key_BGKS.dtype == (jnp.float32 if are_float32 else jnp.bfloat16)
    leaves = map(jax.tree.leaves, (everything, prefix, new))
    for found, first, own in zip(*leaves, strict=True):
        np.testing.assert_array_equal(found[..., :2], first)
        np.testing.assert_array_equal(found[..., 3:4], own)
        assert not found[..., 2].any() and not found[..., 4].any()


def test_a_search_finds_the_same_with_slots_of_float32():
    model = tiny.model(dtype='bfloat16', num_layers=1)
    source_BS = jnp.arange(3, 13, dtype=jnp.int32).reshape(2, 5)
    init = jax.jit(functools.partial(init_variables, model))
    variables = init(jax.random.key(0))
    limits_B = jnp.array([8, 8])
    given = variables, jax.random.key(0), source_BS, limits_B, jnp.arange(2)
    found = []
    for are_float32 in (False, True):
        settings = DecodingOptions(
            as_strategy('beam(beams=3)'),
            processors=(),
            length=8,
            special_tokens=model.special_tokens,
            float32_cache=are_float32,
        )
        decode = jax.jit(functools.partial(decode_rows, model, settings))
        found.append(decode(*given))
    plain, kept = found
    np.testing.assert_array_equal(kept.tokens_BNL, plain.tokens_BNL)
    np.testing.assert_allclose(kept.scores_BN, plain.scores_BN, rtol=1e-5)


@BELOW
def test_linear_holds_however_far_below_zero_its_features_are(q_level, key_level):
    attention = variants.make('attention', 'linear')
    mask = np.tri(5, dtype=bool)[None, None]
    arrays = far_below(q_level, key_level)
    y = attend(*arrays, mask, attention=attention)
    np.testing.assert_allclose(y, linear64(*arrays), atol=1e-4)

    direction = random(*y.shape, seed=3)

    def loss(*arrays):
        return (direction * attend(*arrays, mask, attention=attention)).sum()

    inputs = [jnp.asarray(x, jnp.float32) for x in arrays]
    gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*inputs)
    for i, gradient in enumerate(gradients):
        for at in np.ndindex(1, 5, 1, 2):
            step = np.zeros_like(arrays[i])
            step[at] = 1e-5
            ends = (
                [*arrays[:i], arrays[i] + d, *arrays[i + 1 :]] for d in (step, -step)
            )
            above, below = ((direction * linear64(*end)).sum() for end in ends)
            slope = (above - below) / 2e-5
            np.testing.assert_allclose(gradient[at], slope, atol=1e-3, err_msg=f'{at}')

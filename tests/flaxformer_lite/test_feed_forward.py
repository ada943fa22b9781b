"""Tests of feed-forward networks against formulas; routing of a mixture."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from tiny import apply, float64, normal, sigmoid, variables

from flaxformer_lite.config import variants
from flaxformer_lite.feed_forward import mixture as mixtures
from flaxformer_lite.masks import padding_known
from flaxformer_lite.sizes import Sizes

X = normal(2, 3, 6)


def dense(p, name, x):
    return x @ p[name]['kernel'] + p[name].get('bias', 0.0)


def relu(h):
    return np.maximum(h, 0)


def gelu(h):
    return h * (1 + np.vectorize(math.erf)(h / math.sqrt(2))) / 2


def tanh_gelu(h):
    return h / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))


def silu(h):
    return h * sigmoid(h)


def plain(activation):
    return lambda p, x: dense(p, 'down', activation(dense(p, 'up', x)))


def gated(activation):
    return lambda p, x: dense(
        p, 'down', activation(dense(p, 'gate', x)) * dense(p, 'up', x)
    )


def expert(p, i, x):
    """Returns the result of one expert for a token."""
    p = {
        name: {k: v[i] for k, v in p['experts'][name].items()} for name in p['experts']
    }
    return plain(relu)(p, x)


def mixture(p, x):
    y = np.zeros_like(x)
    for place in np.ndindex(x.shape[:2]):
        e = np.exp(x[place] @ p['gate']['kernel'])
        best = np.argsort(-e)[:2]
        for i in best:
            y[place] += e[i] / e[best].sum() * expert(p, i, x[place])
    return y


REFERENCE_FORMULAS = {
    'relu': plain(relu),
    'gelu': plain(gelu),
    'gelu(tanh=True)': plain(tanh_gelu),
    'gelu(tanh=True, bias=False)': plain(tanh_gelu),
    'silu': plain(silu),
    'squared_relu': plain(lambda h: relu(h) ** 2),
    'linear': plain(lambda h: h),
    'swiglu': gated(silu),
    'geglu': gated(gelu),
    'geglu(tanh=True)': gated(tanh_gelu),
    'geglu(tanh=True, bias=True)': gated(tanh_gelu),
    'gated_tanh': gated(np.tanh),
    'mixture': mixture,
}


def build(text):
    return variants.make('feed_forward', text, sizes=Sizes(d_model=6, d_ff=10))


def params_of(module):
    return variables(module, jnp.zeros((1, 1, 6)))['params']


@pytest.mark.parametrize('text', REFERENCE_FORMULAS)
def test_network_equals_its_reference_formula(text):
    module = build(text)
    p = params_of(module)
    if text != 'mixture':
        assert all(('bias' in layer) == module.bias for layer in p.values())
    y = apply(module, {'params': p}, jnp.asarray(X, jnp.float32))
    expected = REFERENCE_FORMULAS[text](float64(p), X)
    np.testing.assert_allclose(y, expected, atol=1e-5)


def test_every_network_has_a_reference_formula():
    names = {text.split('(')[0] for text in REFERENCE_FORMULAS}
    assert set(variants.names('feed_forward')) == names


@pytest.mark.parametrize('name', ['relu', 'swiglu'])
def test_dropout_applies_to_the_input_of_the_second_matrix(name):
    module = build(f'{name}(dropout=0.5, bias=False, d_ff=6)')
    p = {'params': params_of(module)}
    p['params']['down']['kernel'] = jnp.eye(6)
    x = tiny.normal32(2, 64, 6, seed=3)
    exact = np.asarray(apply(module, p, x))
    y = np.asarray(apply(module, p, x, rngs={'dropout': jax.random.key(0)}))
    is_dropped = y == 0
    assert 0.4 < is_dropped[exact != 0].mean() < 0.6
    np.testing.assert_allclose(y, np.where(is_dropped, 0, 2 * exact), rtol=1e-5)


def train_mixture(text, x, valid=None):
    """Returns parameters, results, auxiliary loss and metrics of a training step."""
    module = build(text)
    p = {'params': params_of(module)}

    @jax.jit
    def train(p, x, valid):
        with padding_known(valid):
            return module.apply(p, x, mutable=['losses', 'metrics'])

    y, found = train(p, jnp.asarray(x, jnp.float32), valid)
    values = {name: float(x) for name, (x,) in found['metrics'].items()}
    return float64(p['params']), y, float(found['losses']['balance'][0]), values


def test_balance_multiplies_shares_of_choices_and_of_probability():
    valid = np.array([[True, True, False], [True, False, True]])
    text = 'mixture(top=1, balance=0.3)'
    p, _, loss, metrics = train_mixture(text, X, jnp.asarray(valid))
    probability = tiny.softmax(X[valid] @ p['gate']['kernel'])
    chosen = np.eye(4)[probability.argmax(-1)]
    expected = 4 * (chosen.mean(0) * probability.mean(0)).sum()
    np.testing.assert_allclose(loss, 0.3 * expected, rtol=1e-5)
    np.testing.assert_allclose(metrics['balance'], expected, rtol=1e-5)
    assert metrics['dropped'] == 0


def test_single_expert_is_weighted_by_its_probability_so_that_the_gate_learns():
    p, y, _, _ = train_mixture('mixture(experts=4, top=1)', X[:1, :1])
    probability = tiny.softmax(X[0, 0] @ p['gate']['kernel'])
    i = probability.argmax()
    expected = probability[i] * expert(p, i, X[0, 0])
    np.testing.assert_allclose(y[0, 0], expected, atol=1e-5)


def dense_mixture(p, x_ND, g_ND, top):
    """Computes every expert for every token, with the gradients of Σ g y."""
    p_NE = tiny.softmax(x_ND @ p['gate']['kernel'])
    chosen_NE = np.argsort(np.argsort(-p_NE, -1), -1) < top
    weight_NE = p_NE * chosen_NE
    if top > 1:
        weight_NE /= weight_NE.sum(-1, keepdims=True)
    up, down = p['experts']['up'], p['experts']['down']
    h_NEF = np.einsum('nd,edf->nef', x_ND, up['kernel']) + up['bias']
    f_NED = np.einsum('nef,efd->ned', relu(h_NEF), down['kernel']) + down['bias']
    y_ND = np.einsum('ne,ned->nd', weight_NE, f_NED)

    df_NED = weight_NE[..., None] * g_ND[:, None]
    dh_NEF = np.einsum('ned,efd->nef', df_NED, down['kernel']) * (h_NEF > 0)
    # Weights are a softmax over the chosen experts, or one of its values over all.
    dw_NE = np.einsum('nd,ned->ne', g_ND, f_NED) * weight_NE
    over_NE = weight_NE if top > 1 else p_NE
    dz_NE = dw_NE - over_NE * dw_NE.sum(-1, keepdims=True)
    dx_ND = dz_NE @ p['gate']['kernel'].T
    dx_ND += np.einsum('nef,edf->nd', dh_NEF, up['kernel'])
    of_up = np.einsum('nd,nef->edf', x_ND, dh_NEF)
    of_down = np.einsum('nef,ned->efd', relu(h_NEF), df_NED)
    gradients = {
        'gate': {'kernel': x_ND.T @ dz_NE},
        'experts': {
            'up': {'kernel': of_up, 'bias': dh_NEF.sum(0)},
            'down': {'kernel': of_down, 'bias': df_NED.sum(0)},
        },
    }
    return y_ND, gradients, dx_ND


@pytest.mark.ci
@pytest.mark.parametrize(
    'copy, shape, experts, top',
    [
        (1e9, (3, 17), 8, 2),  # one block per expert
        (6, (3, 17), 8, 2),  # blocks of several tokens
        (0, (3, 17), 5, 1),  # blocks of one token
        (0, (5, 1), 8, 2),  # a step of decoding
    ],
)
def test_mixture_and_its_gradients_equal_the_dense_formula(
    copy, shape, experts, top, monkeypatch
):
    monkeypatch.setattr(mixtures, 'COPY_IN_TOKENS', copy)
    module = build(f'mixture(experts={experts}, top={top})')
    p = {'params': params_of(module)}
    rng = np.random.default_rng(experts)
    x, g = rng.normal(size=(2, *shape, 6))
    valid = rng.random(shape) < 0.7
    valid[0, 0] = True

    @jax.jit
    def weighted(p, x):
        with padding_known(jnp.asarray(valid)):
            y = module.apply(p, x)
        return (y * jnp.where(valid[..., None], g, 0)).sum(), y

    f = jax.grad(weighted, (0, 1), has_aux=True)
    (found, dx), y = f(p, jnp.asarray(x, jnp.float32))
    expected = dense_mixture(float64(p['params']), x[valid], g[valid], top)
    tiny.assert_close((y[valid], found['params'], dx[valid]), expected, atol=1e-5)
    assert not np.asarray(y)[~valid].any() and not np.asarray(dx)[~valid].any()


def test_blocks_fit_any_routing_and_compute_less_than_every_expert():
    for tokens, top, experts, capacity in [(2048, 2, 8, 2048), (999, 2, 8, 700)]:
        blocks = mixtures._plan_blocks(tokens, top, experts, capacity)
        assert blocks.number * blocks.size < 0.8 * experts * capacity
        # The worst case: the last block of each expert has one token.
        loads = [1 + blocks.size] * (experts - 1)
        loads.append(min(top * tokens - sum(loads), capacity))
        assert sum(-(-load // blocks.size) for load in loads) <= blocks.number


def test_tokens_beyond_the_capacity_are_dropped_only_in_training(monkeypatch):
    monkeypatch.setattr(mixtures, 'COPY_IN_TOKENS', 0)  # blocks of one token
    # Eight equal tokens choose the same two of four experts.
    x = np.repeat(X[:1, :1], 8, 1)
    valid = np.arange(8)[None] != 1
    text = 'mixture(capacity=0.5)'  # 0.5 · 2 · 8 / 4 = 2 slots each
    p, y, _, metrics = train_mixture(text, x, jnp.asarray(valid))
    np.testing.assert_allclose(metrics['dropped'], 1 - 2 * 2 / (7 * 2), rtol=1e-6)
    has_expert = np.abs(np.asarray(y[0])).max(-1) > 0
    # The first two tokens that are not padding.
    np.testing.assert_array_equal(has_expert, np.isin(np.arange(8), [0, 2]))
    module = build(text)
    p = {'params': params_of(module)}
    with padding_known(jnp.asarray(valid)):
        y = jax.jit(module.apply)(p, jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(y[0, valid[0]], np.repeat(y[0, :1], 7, 0), atol=1e-6)


def test_first_choices_have_priority_over_second_ones():
    text = 'mixture(experts=2, capacity=0.5)'  # 0.5 · 2 · 2 / 2 = 1 slot each
    gate = float64(params_of(build(text)))['gate']['kernel']
    # Token 0 prefers expert 0, and token 1 expert 1.
    x = np.stack([gate[:, 0] - gate[:, 1], gate[:, 1] - gate[:, 0]])
    p, y, _, metrics = train_mixture(text, x[None])
    for i in range(2):
        expected = tiny.softmax(x[i] @ gate)[i] * expert(p, i, x[i])
        np.testing.assert_allclose(y[0, i], expected, atol=1e-5)
    np.testing.assert_allclose(metrics['dropped'], 0.5)

"""Tests of feed-forward networks against formulas; routing of a mixture."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import apply, float64, variables

from flaxformer_lite.config import variants
from flaxformer_lite.feed_forward import mixture as mixtures
from flaxformer_lite.masks import padding_known
from flaxformer_lite.sizes import Sizes

X = np.random.default_rng(0).normal(size=(2, 3, 6))


def random(*shape):
    return np.random.default_rng(3).normal(size=shape)


def laws(p, x):  # noqa: C901 (one function a variant)
    """Returns each variant's formula in float64, as a function of its parameters."""

    def dense(name, x):
        return x @ p[name]['kernel'] + p[name].get('bias', 0.0)

    def relu():
        return dense('down', np.maximum(dense('up', x), 0))

    def gelu():
        h = dense('up', x)
        return dense('down', h * (1 + np.vectorize(math.erf)(h / math.sqrt(2))) / 2)

    def silu():
        h = dense('up', x)
        return dense('down', h / (1 + np.exp(-h)))

    def swiglu():
        gate = dense('gate', x)
        return dense('down', gate / (1 + np.exp(-gate)) * dense('up', x))

    def geglu():
        gate = dense('gate', x)
        gate = gate * (1 + np.vectorize(math.erf)(gate / math.sqrt(2))) / 2
        return dense('down', gate * dense('up', x))

    def gated_tanh():
        return dense('down', np.tanh(dense('gate', x)) * dense('up', x))

    def squared_relu():
        return dense('down', np.maximum(dense('up', x), 0) ** 2)

    def linear():
        return dense('down', dense('up', x))

    def mixture():
        y = np.zeros_like(x)
        for place in np.ndindex(x.shape[:2]):
            e = np.exp(x[place] @ p['gate']['kernel'])
            best = np.argsort(-e)[:2]
            for i in best:
                up, down = (
                    {k: v[i] for k, v in p['experts'][n].items()}
                    for n in ('up', 'down')
                )
                h = np.maximum(x[place] @ up['kernel'] + up['bias'], 0)
                y[place] += e[i] / e[best].sum() * (h @ down['kernel'] + down['bias'])
        return y

    return dict(
        relu=relu,
        gelu=gelu,
        silu=silu,
        swiglu=swiglu,
        geglu=geglu,
        gated_tanh=gated_tanh,
        squared_relu=squared_relu,
        linear=linear,
        mixture=mixture,
    )


def made(text, **parts):
    sizes = Sizes(d_model=6, d_ff=10)
    return variants.make('feed_forward', text, sizes=sizes, **parts)


def run(name, x, **parts):
    module = made(name, **parts)
    p = variables(module, jnp.zeros((1, 1, 6)))
    return p['params'], apply(module, p, jnp.asarray(x, jnp.float32))


@pytest.mark.parametrize('name', variants.names('feed_forward'))
def test_is_its_formula(name):
    p, y = run(name, X)
    if name != 'mixture':
        assert all(('bias' in layer) == made(name).bias for layer in p.values())
    np.testing.assert_allclose(y, laws(float64(p), X)[name](), atol=1e-5)


def tanh_gelu(h):
    return h / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))


@pytest.mark.parametrize('bias', [True, False])
def test_gelu_by_tanh_is_its_formula_with_and_without_biases(bias):
    p, y = run(f'gelu(tanh=True, bias={bias})', X)
    assert all(('bias' in p[name]) == bias for name in ('up', 'down'))
    p = float64(p)
    biases = {name: p[name].get('bias', 0.0) for name in p}
    h = tanh_gelu(X @ p['up']['kernel'] + biases['up'])
    expected = h @ p['down']['kernel'] + biases['down']
    np.testing.assert_allclose(y, expected, atol=1e-5)

    p, y = run(f'geglu(tanh=True, bias={bias})', X)
    assert all(('bias' in p[name]) == bias for name in ('gate', 'up', 'down'))
    p = float64(p)
    gate, up = (
        X @ p[name]['kernel'] + p[name].get('bias', 0.0) for name in ('gate', 'up')
    )
    expected = tanh_gelu(gate) * up @ p['down']['kernel'] + p['down'].get('bias', 0.0)
    np.testing.assert_allclose(y, expected, atol=1e-5)


@pytest.mark.parametrize('name', ['relu', 'swiglu', 'gated_tanh'])
def test_dropout_falls_on_what_the_second_matrix_reads(name):
    module = made(f'{name}(dropout=0.5, bias=False, d_ff=6)')
    p = variables(module, jnp.zeros((1, 1, 6)))
    p['params']['down']['kernel'] = jnp.eye(6)
    x = jnp.asarray(random(2, 64, 6), jnp.float32)
    exact = np.asarray(apply(module, p, x))
    y = np.asarray(apply(module, p, x, rngs={'dropout': jax.random.key(0)}))
    dropped = y == 0
    assert 0.4 < dropped[exact != 0].mean() < 0.6
    np.testing.assert_allclose(y, np.where(dropped, 0, 2 * exact), rtol=1e-5)


def mixture(text, x, valid=None):
    """Returns parameters, results, auxiliary loss and metrics of a training step."""
    module = made(text)
    p = {'params': variables(module, jnp.zeros((1, 1, 6)))['params']}
    x = jnp.asarray(x, jnp.float32)

    @jax.jit
    def train(p, x, valid):
        with padding_known(valid):
            return module.apply(p, x, mutable=['losses', 'metrics'])

    y, found = train(p, x, valid)
    values = {name: float(x) for name, (x,) in found['metrics'].items()}
    return p['params'], y, float(found['losses']['balance'][0]), values


def test_experts_are_balanced_by_their_share_of_choices_and_of_probability():
    valid = np.array([[True, True, False], [True, False, True]])
    p, _, loss, metrics = mixture('mixture(top=1, balance=0.3)', X, jnp.asarray(valid))
    e = np.exp(X[valid] @ float64(p['gate']['kernel']))
    probability = e / e.sum(-1, keepdims=True)
    chosen = np.eye(4)[probability.argmax(-1)]
    expected = 4 * (chosen.mean(0) * probability.mean(0)).sum()
    np.testing.assert_allclose(loss, 0.3 * expected, rtol=1e-5)
    np.testing.assert_allclose(metrics['balance'], expected, rtol=1e-5)
    assert metrics['dropped'] == 0


def test_an_only_expert_is_weighed_by_its_probability_so_that_the_gate_learns():
    p, y, _, _ = mixture('mixture(experts=4, top=1)', X[:1, :1])
    e = np.exp(X[0, 0] @ float64(p['gate']['kernel']))
    i = e.argmax()
    up, down = (
        {k: float64(v[i]) for k, v in p['experts'][n].items()} for n in ('up', 'down')
    )
    h = np.maximum(X[0, 0] @ up['kernel'] + up['bias'], 0)
    expected = e[i] / e.sum() * (h @ down['kernel'] + down['bias'])
    np.testing.assert_allclose(y[0, 0], expected, atol=1e-5)


def dense_mixture(p, x_ND, g_ND, top):
    """Computes every expert for every token, with the gradients of Σ g y."""
    z_NE = x_ND @ p['gate']['kernel']
    p_NE = np.exp(z_NE) / np.exp(z_NE).sum(-1, keepdims=True)
    chosen_NE = np.argsort(np.argsort(-p_NE, -1), -1) < top
    weight_NE = p_NE * chosen_NE
    if top > 1:
        weight_NE /= weight_NE.sum(-1, keepdims=True)
    up, down = p['experts']['up'], p['experts']['down']
    h_NEF = np.einsum('nd,edf->nef', x_ND, up['kernel']) + up['bias']
    f_NED = np.einsum('nef,efd->ned', np.maximum(h_NEF, 0), down['kernel'])
    f_NED += down['bias']
    y_ND = np.einsum('ne,ned->nd', weight_NE, f_NED)

    df_NED = weight_NE[..., None] * g_ND[:, None]
    dh_NEF = np.einsum('ned,efd->nef', df_NED, down['kernel']) * (h_NEF > 0)
    # Weights are a softmax over the chosen experts, or one of its values over all.
    dw_NE = np.einsum('nd,ned->ne', g_ND, f_NED) * weight_NE
    over_NE = weight_NE if top > 1 else p_NE
    dz_NE = dw_NE - over_NE * dw_NE.sum(-1, keepdims=True)
    dx_ND = dz_NE @ p['gate']['kernel'].T
    dx_ND += np.einsum('nef,edf->nd', dh_NEF, up['kernel'])
    gradients = {
        'gate': {'kernel': x_ND.T @ dz_NE},
        'experts': {
            'up': {
                'kernel': np.einsum('nd,nef->edf', x_ND, dh_NEF),
                'bias': dh_NEF.sum(0),
            },
            'down': {
                'kernel': np.einsum('nef,ned->efd', np.maximum(h_NEF, 0), df_NED),
                'bias': df_NED.sum(0),
            },
        },
    }
    return y_ND, gradients, dx_ND


@pytest.mark.parametrize(
    'copy, shape, experts, top',
    [
        (1e9, (3, 17), 8, 2),  # one block per expert
        (6, (3, 17), 8, 2),  # blocks of several tokens
        (0, (3, 17), 5, 1),  # of one
        (0, (5, 1), 8, 2),  # a step of decoding
    ],
)
def test_a_mixture_and_its_gradients_are_the_dense_formula(
    copy, shape, experts, top, monkeypatch
):
    monkeypatch.setattr(mixtures, 'COPY_IN_TOKENS', copy)
    module = made(f'mixture(experts={experts}, top={top})')
    p = {'params': variables(module, jnp.zeros((1, 1, 6)))['params']}
    draw = np.random.default_rng(experts)
    x, g = draw.normal(size=(2, *shape, 6))
    valid = draw.random(shape) < 0.7
    valid[0, 0] = True

    @jax.jit
    def weighted(p, x):
        with padding_known(jnp.asarray(valid)):
            y = module.apply(p, x)
        return (y * jnp.where(valid[..., None], g, 0)).sum(), y

    f = jax.grad(weighted, (0, 1), has_aux=True)
    (found, dx), y = f(p, jnp.asarray(x, jnp.float32))
    expected = dense_mixture(float64(p['params']), x[valid], g[valid], top)
    found = y[valid], found['params'], dx[valid]
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, expected
    )
    assert not np.asarray(y)[~valid].any() and not np.asarray(dx)[~valid].any()


def test_blocks_hold_any_routing_and_compute_less_than_every_expert():
    for tokens, top, experts, capacity in [(2048, 2, 8, 2048), (999, 2, 8, 700)]:
        blocks = mixtures._plan_blocks(tokens, top, experts, capacity)
        assert blocks.number * blocks.size < 0.8 * experts * capacity
        # The worst case: an expert's last block holds one token.
        loads = [1 + blocks.size] * (experts - 1)
        loads.append(min(top * tokens - sum(loads), capacity))
        assert sum(-(-load // blocks.size) for load in loads) <= blocks.number


def test_what_an_expert_has_no_room_for_is_counted_and_only_in_training(
    monkeypatch,
):
    monkeypatch.setattr(mixtures, 'COPY_IN_TOKENS', 0)  # blocks of one token
    # Eight equal tokens: all want the same two of four experts.
    x = np.repeat(X[:1, :1], 8, 1)
    valid = np.arange(8)[None] != 1
    text = 'mixture(capacity=0.5)'  # 0.5 · 2 · 8 / 4 = 2 slots each
    p, y, _, metrics = mixture(text, x, jnp.asarray(valid))
    np.testing.assert_allclose(metrics['dropped'], 1 - 2 * 2 / (7 * 2), rtol=1e-6)
    held = np.abs(np.asarray(y[0])).max(-1) > 0
    # The first two that are no padding.
    np.testing.assert_array_equal(held, np.isin(np.arange(8), [0, 2]))
    with padding_known(jnp.asarray(valid)):
        y = jax.jit(made(text).apply)({'params': p}, jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(y[0, valid[0]], np.repeat(y[0, :1], 7, 0), atol=1e-6)


def test_first_choices_take_their_slots_before_second_ones():
    text = 'mixture(experts=2, capacity=0.5)'  # 0.5 · 2 · 2 / 2 = 1 slot each
    gate = float64(mixture(text, X)[0])['gate']['kernel']
    # Token 0 wants expert 0, then 1; token 1 wants 1, then 0.
    x = np.stack([gate[:, 0] - gate[:, 1], gate[:, 1] - gate[:, 0]])
    p, y, _, metrics = mixture(text, x[None])
    for i in range(2):
        e = np.exp(x[i] @ gate)
        up, down = (
            {k: float64(v[i]) for k, v in p['experts'][n].items()}
            for n in ('up', 'down')
        )
        h = np.maximum(x[i] @ up['kernel'] + up['bias'], 0)
        expected = e[i] / e.sum() * (h @ down['kernel'] + down['bias'])
        np.testing.assert_allclose(y[0, i], expected, atol=1e-5)
    np.testing.assert_allclose(metrics['dropped'], 0.5)

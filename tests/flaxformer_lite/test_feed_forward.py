"""Tests of feed-forward networks against formulas; routing of a mixture."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import apply, float64, variables

from flaxformer_lite.config import variants
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


def test_what_an_expert_has_no_room_for_is_counted_and_only_in_training():
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
        y = made(text).apply({'params': p}, jnp.asarray(x, jnp.float32))
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

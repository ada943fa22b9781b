"""Tests of low-rank adapters."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tiny import apply, float64, variables

import flaxformer_lite
from flaxformer_lite import adapters
from flaxformer_lite.layers.dense.lora import LoRADense
from flaxformer_lite.training import freezing

SIZES = dict(d_model=12, num_layers=2, num_heads=2, d_k=4, d_v=3, d_ff=16, dropout=0.0)
SOURCE = jnp.array([[5, 6, 7, 1], [8, 9, 1, 0]])
INPUTS = jnp.array([[2, 5, 6], [2, 9, 8]])


def random(tree, seed=0):
    """Replaces all values, so that B isn't 0."""
    leaves, structure = jax.tree.flatten(tree)
    draw = np.random.default_rng(seed).normal
    made = [jnp.asarray(draw(0, 0.3, x.shape), jnp.float32) for x in leaves]
    return jax.tree.unflatten(structure, made)


def model_with(dense, **fields):
    return flaxformer_lite.build.model(SIZES | fields | {'dense': dense}, vocab_size=10)


@pytest.mark.parametrize(
    ('stabilized', 'scale'), [(False, 6 / 3), (True, 6 / np.sqrt(3))]
)
def test_a_layer_adds_the_scaled_low_rank_product(stabilized, scale):
    x = random(jnp.ones((2, 5, 3, 4)))
    dense = LoRADense(
        (6, 7), 2, rank=3, alpha=6.0, on='', stabilized=stabilized, name='query'
    )
    p = random(variables(dense, x))
    w, bias, a, b = (
        float64(p['params'][name]) for name in ('kernel', 'bias', 'lora_a', 'lora_b')
    )
    assert a.shape == (12, 3) and b.shape == (3, 42)
    x_ND = float64(x).reshape(10, 12)
    expected = x_ND @ w.reshape(12, 42) + scale * (x_ND @ a @ b) + bias.reshape(42)
    found = apply(dense, p, x).reshape(10, 42)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_dora_trains_the_norms_of_the_columns():
    x = random(jnp.ones((5, 4)))
    dense = LoRADense((6,), rank=3, alpha=6.0, on='', dora=True, name='query')
    p = random(variables(dense, x), 1)

    def columns(matrix):
        return np.linalg.norm(matrix, axis=0)

    w, bias, a, b, delta = (
        float64(p['params'][name])
        for name in ('kernel', 'bias', 'lora_a', 'lora_b', 'lora_m')
    )
    v = w + 2 * a @ b
    magnitude = columns(w) + delta
    expected = float64(x) @ (magnitude * v / columns(v)) + bias
    np.testing.assert_allclose(apply(dense, p, x), expected, rtol=1e-5, atol=1e-5)

    # Equation 11: with the norm constant, ∂L/∂V = m / ‖V‖ ∂L/∂W'.
    def loss(params):
        return dense.apply({'params': params}, x).sum()

    grads = jax.grad(loss)(p['params'])
    of_v = (magnitude / columns(v)) * float64(x).sum(0)[:, None]
    np.testing.assert_allclose(grads['lora_b'], 2 * a.T @ of_v, rtol=1e-4, atol=1e-5)
    of_m = (float64(x) @ (v / columns(v))).sum(0)
    np.testing.assert_allclose(grads['lora_m'], of_m, rtol=1e-4, atol=1e-5)

    first = p['params'] | {'lora_b': 0 * p['params']['lora_b'], 'lora_m': jnp.zeros(6)}
    plain = float64(x) @ w + bias
    np.testing.assert_allclose(apply(dense, {'params': first}, x), plain, rtol=1e-5)


def test_dora_keeps_a_column_of_zeros():
    x = jnp.ones((5, 4))
    dense = LoRADense((6,), rank=3, on='', dora=True, bias=False, name='query')
    params = variables(dense, x)['params']
    for name in ('kernel', 'lora_b'):
        params[name] = params[name].at[:, 0].set(0)
    y = apply(dense, {'params': params}, x)
    assert not y[:, 0].any() and y[:, 1:].all()
    np.testing.assert_allclose(x @ dense.merge(params)['kernel'], y, rtol=1e-5)


def test_b_starts_at_zero_and_a_uniform_within_the_root_of_the_width():
    dense = LoRADense((50,), rank=40, on='')
    p = jax.jit(dense.init)(jax.random.key(0), jnp.ones((1, 100)))['params']
    np.testing.assert_array_equal(p['lora_b'], 0.0)
    a = np.asarray(p['lora_a'])
    bound = 1 / np.sqrt(100)
    assert 0.99 * bound < np.abs(a).max() <= bound
    np.testing.assert_allclose(a.std(), bound / np.sqrt(3), rtol=0.05)


def test_adapters_are_on_the_matrices_that_the_expression_names():
    model = model_with('lora(rank=2, on="cross_attention/(query|value)|decoder.*up")')
    p = jax.eval_shape(model.init, jax.random.key(0), SOURCE, INPUTS)['params']
    paths = freezing.paths(p)
    found = {x.removesuffix('/lora_a') for x in paths if x.endswith('/lora_a')}
    assert found == {
        f'decoder/layer_{layer}/{name}'
        for layer in (0, 1)
        for name in (
            'cross_attention/query',
            'cross_attention/value',
            'feed_forward/up',
        )
    }
    lora = {x for x in paths if 'lora_' in x}
    assert adapters.frozen_paths(model, p) == set(paths) - lora


@pytest.mark.parametrize(
    ('dora', 'fields'),
    [
        (True, {}),
        pytest.param(False, {}, marks=pytest.mark.slow),
        pytest.param(True, dict(scan_layers=True), marks=pytest.mark.slow),
        pytest.param(False, dict(scan_layers=True), marks=pytest.mark.slow),
        pytest.param(False, dict(architecture='recurrent'), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_merged_model_computes_the_same_logits(dora, fields):
    model = model_with(f'lora(rank=2, on="", dora={dora})', **fields)
    first = jax.eval_shape(model.init, jax.random.key(0), SOURCE, INPUTS)
    p = random(first)
    plain = model_with(None, **fields)
    merged = adapters.merge(model, p)
    expected = jax.eval_shape(plain.init, jax.random.key(0), SOURCE, INPUTS)
    shapes = jax.tree.map(jnp.shape, merged)
    assert shapes == jax.tree.map(lambda x: x.shape, expected)
    ours = model.apply(p, SOURCE, INPUTS)
    np.testing.assert_allclose(
        plain.apply(merged, SOURCE, INPUTS), ours, rtol=1e-5, atol=1e-5
    )
    by_path = freezing.paths(p['params'])
    held = {x: y * (0 if x.endswith('lora_b') else 1) for x, y in by_path.items()}
    other = model.apply({'params': freezing.from_paths(held)}, SOURCE, INPUTS)
    assert np.abs(np.asarray(other - ours)).max() > 0.01


def test_training_changes_only_the_adapters_and_lowers_the_loss():
    model = model_with('lora(rank=2)')
    sources, targets = [[5, 6, 7, 1], [8, 1]], [[9, 1], [4, 3, 1]]
    batch = flaxformer_lite.make_batch(sources, targets, model=model)
    shapes = jax.eval_shape(model.init, jax.random.key(0), SOURCE, INPUTS)
    frozen = adapters.frozen_paths(model, shapes['params'])
    optimizer = optax.adam(3e-2)
    state = flaxformer_lite.init_state(
        model, optimizer, jax.random.key(0), frozen=frozen
    )
    step = jax.jit(flaxformer_lite.make_train_step(model, optimizer, frozen=frozen))
    before = freezing.paths(state.params)
    losses = []
    for _ in range(20):
        state, metrics = step(state, batch, jax.random.key(1))
        losses.append(float(metrics.sums.loss))
    after = freezing.paths(state.params)
    changed = {x for x in before if not np.array_equal(before[x], after[x])}
    assert changed == set(before) - frozen
    assert losses[-1] < 0.5 * losses[0]


def test_invalid_adapters_are_refused():
    for argument, problem in {
        'rank=20': r'^model\.dense: rank=20 exceeds .*value, 6\. Low',
        'alpha=0.0': r'alpha.* above 0',
        'alpha=-1.0': r'alpha.* above 0',
        'on="nothing"': '^model.dense: the pattern matches no .*decoder/layer_0/cr',
    }.items():
        with pytest.raises(ValueError, match=problem):
            model = model_with(f'lora({argument})')
            p = jax.eval_shape(model.init, jax.random.key(0), SOURCE, INPUTS)
            adapters.frozen_paths(model, p['params'])


def test_adapters_with_equal_arguments_compute_alike():
    model = model_with('lora(rank=2)')
    alike = 'lora(rank=2, alpha=16.0)', 'lora(rank=2, on="up")'
    for dense in alike:
        assert adapters.compute_alike(model, model_with(dense, dtype='bfloat16')), dense
    other = 'lora(rank=2, alpha=8.0)', 'lora(rank=2, stabilized=True)', 'lora(rank=3)'
    for dense in (*other, 'lora(rank=2, dora=True)', None):
        assert not adapters.compute_alike(model, model_with(dense)), dense

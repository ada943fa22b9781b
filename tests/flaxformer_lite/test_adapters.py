"""Tests of low-rank adapters."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny
from tiny import apply, float64, normal32, slow, variables

import flaxformer_lite
from flaxformer_lite import adapters
from flaxformer_lite.layers.dense.lora import LoRA
from flaxformer_lite.training import freezing

SOURCE = jnp.array([[5, 6, 7, 1], [8, 9, 1, 0]])
INPUTS = jnp.array([[2, 5, 6], [2, 9, 8]])


def model_with(dense, **fields):
    fields = dict(dropout=0.0, num_layers=1) | fields | {'dense': dense}
    return tiny.model(**fields)


@pytest.mark.parametrize(
    ('stabilized', 'scale'), [(False, 6 / 3), (True, 6 / np.sqrt(3))]
)
def test_layer_adds_the_scaled_low_rank_product(stabilized, scale):
    x = normal32(2, 5, 3, 4)
    dense = LoRA(
        (6, 7), 2, rank=3, alpha=6.0, on='', stabilized=stabilized, name='query'
    )
    p = variables(dense, x)
    w, bias, a, b = (
        float64(p['params'][name]) for name in ('kernel', 'bias', 'lora_a', 'lora_b')
    )
    assert a.shape == (12, 3) and b.shape == (3, 42)
    x_ND = float64(x).reshape(10, 12)
    expected = x_ND @ w.reshape(12, 42) + scale * (x_ND @ a @ b) + bias.reshape(42)
    found = apply(dense, p, x).reshape(10, 42)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def lengths(matrix):
    return np.linalg.norm(matrix, axis=0)


def test_dora_trains_the_lengths_of_the_columns():
    x = normal32(5, 4)
    dense = LoRA((6,), rank=3, alpha=6.0, on='', dora=True, name='query')
    p = variables(dense, x)
    names = 'kernel', 'bias', 'lora_a', 'lora_b', 'lora_m'
    w, bias, a, b, delta = (float64(p['params'][name]) for name in names)
    v = w + 2 * a @ b
    magnitude = lengths(w) + delta
    expected = float64(x) @ (magnitude * v / lengths(v)) + bias
    np.testing.assert_allclose(apply(dense, p, x), expected, rtol=1e-5, atol=1e-5)

    # Equation 11: with the norm constant, ∂L/∂V = m / ‖V‖ ∂L/∂W'.
    def loss(params):
        return dense.apply({'params': params}, x).sum()

    grads = jax.jit(jax.grad(loss))(p['params'])
    of_v = (magnitude / lengths(v)) * float64(x).sum(0)[:, None]
    np.testing.assert_allclose(grads['lora_b'], 2 * a.T @ of_v, rtol=1e-4, atol=1e-5)
    of_m = (float64(x) @ (v / lengths(v))).sum(0)
    np.testing.assert_allclose(grads['lora_m'], of_m, rtol=1e-4, atol=1e-5)

    first = p['params'] | {'lora_b': 0 * p['params']['lora_b'], 'lora_m': jnp.zeros(6)}
    plain = float64(x) @ w + bias
    found = apply(dense, {'params': first}, x)
    np.testing.assert_allclose(found, plain, rtol=1e-5, atol=1e-6)


def test_dora_supports_columns_of_zeros():
    x = jnp.ones((5, 4))
    dense = LoRA((6,), rank=3, on='', dora=True, bias=False, name='query')
    params = variables(dense, x)['params']
    for name in ('kernel', 'lora_b'):
        params[name] = params[name].at[:, 0].set(0)
    y = apply(dense, {'params': params}, x)
    assert not y[:, 0].any() and y[:, 1:].all()
    np.testing.assert_allclose(x @ dense.merge(params)['kernel'], y, rtol=1e-5)


def test_b_starts_at_zero_and_a_is_uniform_by_the_width():
    dense = LoRA((50,), rank=40, on='')
    p = jax.jit(dense.init)(jax.random.key(0), jnp.ones((1, 100)))['params']
    np.testing.assert_array_equal(p['lora_b'], 0.0)
    a = np.asarray(p['lora_a'])
    bound = 1 / np.sqrt(100)
    assert 0.99 * bound < np.abs(a).max() <= bound
    np.testing.assert_allclose(a.std(), bound / np.sqrt(3), rtol=0.05)


def test_pattern_selects_the_adapted_matrices():
    spec = 'lora(rank=2, on="cross_attention/(query|value)|decoder.*up")'
    model = model_with(spec, num_layers=2)
    p = jax.eval_shape(model.init, jax.random.key(0), SOURCE, INPUTS)['params']
    paths = freezing.paths(p)
    found = {x.removesuffix('/lora_a') for x in paths if x.endswith('/lora_a')}
    names = 'cross_attention/query', 'cross_attention/value', 'feed_forward/up'
    assert found == {f'decoder/layer_{i}/{name}' for i in (0, 1) for name in names}
    lora = {x for x in paths if 'lora_' in x}
    assert adapters.frozen_paths(model, p) == set(paths) - lora


@pytest.mark.ci
@pytest.mark.parametrize(
    ('dora', 'fields'),
    [
        (True, dict(architecture='decoder_only')),
        slow(False, {}),
        slow(True, dict(scan_layers=True)),
        slow(False, dict(scan_layers=True)),
        slow(False, dict(architecture='recurrent')),
    ],
    ids=str,
)
def test_merged_model_computes_the_same_logits(dora, fields):
    model = model_with(f'lora(rank=2, on="", dora={dora})', **fields)
    p = tiny.all_variables(model)
    plain = model_with(None, **fields)
    merged = adapters.merge(model, p)
    expected = jax.eval_shape(plain.init, jax.random.key(0), SOURCE, INPUTS)
    shapes = jax.tree.map(jnp.shape, merged)
    assert shapes == jax.tree.map(lambda x: x.shape, expected)
    adapted = apply(model, p, SOURCE, INPUTS)
    found = apply(plain, merged, SOURCE, INPUTS)
    np.testing.assert_allclose(found, adapted, rtol=1e-5, atol=1e-5)
    by_path = freezing.paths(p['params'])
    zeroed = {x: y * (0 if x.endswith('lora_b') else 1) for x, y in by_path.items()}
    zeroed = {'params': freezing.from_paths(zeroed)}
    without = apply(model, zeroed, SOURCE, INPUTS)
    assert np.abs(np.asarray(without - adapted)).max() > 0.01


@pytest.mark.slow
def test_training_changes_only_the_adapters_and_lowers_the_loss():
    model = model_with('lora(rank=2)', architecture='decoder_only')
    sources, targets = [[5, 6, 7, 1], [8, 1]], [[9, 1], [4, 3, 1]]
    batch = flaxformer_lite.make_batch(sources, targets, model=model)
    shapes = jax.eval_shape(model.init, jax.random.key(0), SOURCE, INPUTS)
    frozen = adapters.frozen_paths(model, shapes['params'])
    optimizer, key = optax.adam(3e-2), jax.random.key(0)
    state = flaxformer_lite.init_state(model, optimizer, key, frozen=frozen)
    step = jax.jit(flaxformer_lite.make_train_step(model, optimizer, frozen=frozen))
    before = freezing.paths(state.params)
    losses = []
    for _ in range(60):
        state, metrics = step(state, batch, jax.random.key(1))
        losses.append(float(metrics.sums.loss))
    after = freezing.paths(state.params)
    changed = {x for x in before if not np.array_equal(before[x], after[x])}
    assert changed == set(before) - frozen
    assert losses[-1] < 0.5 * losses[0]


def test_invalid_adapters_are_rejected():
    for argument, problem in {
        'rank=20': '^LoRA.rank=20 exceeds',
        'alpha=0.0': 'alpha.* above 0',
        'alpha=-1.0': 'alpha.* above 0',
        'on="nothing"': '^dense: LoRA matches no weight matrix.*decoder/layer_0/cr',
    }.items():
        with pytest.raises(ValueError, match=problem):
            model = model_with(f'lora({argument})')
            p = jax.eval_shape(model.init, jax.random.key(0), SOURCE, INPUTS)
            adapters.frozen_paths(model, p['params'])


def test_adapters_with_equal_arguments_compute_alike():
    model = model_with('lora(rank=2)')
    for dense in ('lora(rank=2, alpha=16.0)', 'lora(rank=2, on="up")'):
        other = model_with(dense, dtype='bfloat16')
        assert adapters.compute_alike(model, other), dense
    others = 'alpha=8.0', 'stabilized=True', 'dora=True'
    for dense in (*(f'lora(rank=2, {x})' for x in others), 'lora(rank=3)', None):
        assert not adapters.compute_alike(model, model_with(dense)), dense

"""Tests of optimizers against their papers in float64, and of weight decay."""

import contextlib
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny
from flax.traverse_util import flatten_dict, unflatten_dict

from configs import wmt_base
from experiments.checkpoints.checkpoints import Checkpoints
from experiments.config import components, load
from experiments.errors import UserError
from experiments.optimizers import optax_specs, optimizer
from flaxformer_lite import testing
from flaxformer_lite.config import builder, variants
from flaxformer_lite.layers.scanned_stack import stack_layers
from flaxformer_lite.training.train_step import (
    init_state,
    init_variables,
    make_train_step,
)

STEPS = 6
D_MODEL, WARMUP = 16, 3


def config(**settings):
    result = wmt_base.get_config()
    result.model.d_model = D_MODEL
    result.optimizer.schedule = f'noam(warmup={WARMUP})'
    result.optimizer.update(settings)
    return load.from_config_dict(result)


def make(config, steps=100):
    model = builder.build(config.model, vocab_size=11)
    return components.make_optimizer(config).build(model, steps)


def problem():
    rng = np.random.default_rng(0)
    shapes = {'kernel': (3, 4), 'scale': (4,), 'embedding': (5, 2), 'form': (2, 3)}

    def draw():
        return {name: rng.standard_normal(shape) for name, shape in shapes.items()}

    sizes = 10.0 ** rng.uniform(-2, 1, STEPS)
    return draw(), [{name: size * g for name, g in draw().items()} for size in sizes]


def run(config):
    update, _ = make(config)
    params, gradients = jax.tree.map(jnp.float32, problem())
    state = update.init(params)

    @jax.jit
    def step(gradient, state, params):
        updates, state = update.update(gradient, state, params)
        return jax.tree.map(jnp.add, params, updates), state

    history = []
    for gradient in gradients:
        params, state = step(gradient, state, params)
        history.append(params)
    return history


def adam(*, b1, b2, eps, clip=np.inf, decay=0.0):
    """Returns Kingma and Ba (2015), algorithm 1, at the schedule of the paper's §5.3.

    Matrices and embeddings decay by Loshchilov and Hutter (2019), algorithm 2.
    """
    params, gradients = problem()
    m, v = ({name: 0.0 * w for name, w in params.items()} for _ in 'mv')
    history = []
    for t, gradient in enumerate(gradients, 1):
        rate = D_MODEL**-0.5 * min(t**-0.5, t * WARMUP**-1.5)
        norm = np.sqrt(sum((g**2).sum() for g in gradient.values()))
        for name, w in params.items():
            g = gradient[name] * min(1.0, clip / norm)
            m[name] = b1 * m[name] + (1 - b1) * g
            v[name] = b2 * v[name] + (1 - b2) * g**2
            direction = m[name] / (1 - b1**t) / (np.sqrt(v[name] / (1 - b2**t)) + eps)
            decrease = decay * w if name in ('kernel', 'embedding') else 0.0
            params = params | {name: w - rate * (direction + decrease)}
        history.append(params)
    return history


def assert_equal(actual, expected):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=3e-6), actual, expected
    )


@pytest.mark.ci
@pytest.mark.parametrize(
    'settings',
    [
        {},
        {'b1': 0.5, 'b2': 0.7, 'eps': 0.3},
        {'b1': 0.0},
        # With a large ε, since otherwise Adam hardly depends on the gradient's norm
        {'eps': 0.3, 'clip': 0.5},
        {'name': 'adamw', 'weight_decay': 0.4},
    ],
    ids=str,
)
def test_adam_matches_the_float64_formula_with_clipping_and_decay(settings):
    defaults = {'b1': 0.9, 'b2': 0.98, 'eps': 1e-9}
    names = {'weight_decay': 'decay'}
    arguments = {names.get(x, x): settings[x] for x in settings if x != 'name'}
    assert_equal(run(config(**settings)), adam(**defaults | arguments))


def gradients():
    return jax.tree.map(jnp.float32, problem()[1])


def trained(update, params, state, gradients):

    @jax.jit
    def step(gradient, state, params):
        updates, state = update.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    for gradient in gradients:
        params, state = step(gradient, state, params)
    return params, state


def assert_identical(one, other):
    if jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key):
        one, other = map(jax.random.key_data, (one, other))
    np.testing.assert_array_equal(one, other)


def every_optimizer():
    seeded = {'noisy_sgd': 'noisy_sgd(key=1)'}
    return [seeded.get(name, name) for name in optax_specs.makers()]


@pytest.mark.slow
def test_every_optimizer_resumes_exactly_from_its_checkpoint(tmp_path):
    params = jax.tree.map(jnp.float32, problem()[0])
    updates, saved = {}, {}
    for name in every_optimizer():
        updates[name], _ = make(config(name=name, clip=5.0))
        first = jax.jit(updates[name].init)(params)
        saved[name] = trained(updates[name], params, first, gradients()[:3])
    with contextlib.closing(Checkpoints(tmp_path)) as checkpoints:
        checkpoints.save(3, saved, {})
        abstract = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), saved
        )
        restored = checkpoints.restore(abstract).state
    for name, update in updates.items():
        expected, resumed = (
            trained(update, *x[name], gradients()[3:]) for x in (saved, restored)
        )
        jax.tree.map(assert_identical, expected, resumed)
        moved = jax.tree.map(lambda x, y: bool(jnp.any(x != y)), expected[0], params)
        assert all(jax.tree.leaves(moved)), name
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(expected[0])), name


@pytest.mark.slow
def test_learning_rate_of_every_optimizer_is_the_schedules():
    params = jax.tree.map(jnp.float32, problem()[0])
    for name in every_optimizer():
        still = config(name=name, schedule='constant_schedule(value=1e-8)')
        update, _ = make(still)
        after, _ = trained(update, params, update.init(params), gradients()[:2])
        jax.tree.map(
            functools.partial(np.testing.assert_allclose, atol=1e-4, err_msg=name),
            after,
            params,
        )


def test_lion_matches_the_float64_formula_with_the_decay_mask():
    """Compares with algorithm 2 of Chen et al. (2023)."""
    params, gradients = problem()
    m = {name: 0.0 * w for name, w in params.items()}
    history = []
    for t, gradient in enumerate(gradients, 1):
        rate = D_MODEL**-0.5 * min(t**-0.5, t * WARMUP**-1.5)
        for name, w in params.items():
            direction = np.sign(0.8 * m[name] + 0.2 * gradient[name])
            decay = 0.5 * w if name in ('kernel', 'embedding') else 0.0
            m[name] = 0.99 * m[name] + 0.01 * gradient[name]
            params = params | {name: w - rate * (direction + decay)}
        history.append(params)
    assert_equal(run(config(name='lion(b1=0.8, weight_decay=0.5)')), history)


def newton_schulz(matrix):
    """Returns the orthogonalized matrix of Jordan et al. (2024), "Muon"."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix / np.linalg.norm(matrix)
    for _ in range(5):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x


@pytest.mark.ci
@pytest.mark.ci
def test_muon_orthogonalizes_dense_kernels_as_matrices_and_adam_updates_the_rest():
    rng = np.random.default_rng(0)
    # Path → the kernel's shape, and its shape as a matrix; all heads are one matrix.
    kernels = {
        'self_attention/query/kernel': ((5, 2, 3), (5, 6)),
        'self_attention/out_proj/kernel': ((2, 3, 5), (6, 5)),
        'self_attention/head_gate/kernel': ((12, 2, 1), (12, 2)),
        'self_attention/forget_gate/kernel': ((12, 2), (12, 2)),
        'feed_forward/up/kernel': ((5, 7), (5, 7)),
        'feed_forward/experts/up/kernel': ((2, 5, 7), (5, 7)),
    }
    sizes = {path: shape for path, (shape, _) in kernels.items()}
    sizes |= {'embedding': (6, 5), 'feed_forward/up/bias': (7,)}
    for name in ('query/kernel', 'out_proj/kernel', 'up/kernel'):
        assert any(path.endswith(name) for path in masks())
    w = {path: rng.standard_normal(shape) for path, shape in sizes.items()}
    schedule = 'constant_schedule(value=0.5)'
    update, _ = make(config(name='contrib.muon(weight_decay=0.1)', schedule=schedule))
    params = jax.tree.map(jnp.float32, unflatten_dict(w, sep='/'))
    # The first step has the gradient's direction for any momentum.
    updates, _ = jax.jit(update.update)(params, update.init(params), params)
    found = flatten_dict(updates, sep='/')
    for path, (shape, (fan_in, fan_out)) in kernels.items():
        scale = np.sqrt(max(1, fan_out / fan_in))
        each = [newton_schulz(x) for x in w[path].reshape(-1, fan_in, fan_out)]
        expected = -0.5 * (scale * np.reshape(each, shape) + 0.1 * w[path])
        np.testing.assert_allclose(found[path], expected, atol=1e-5, err_msg=path)
    adam = optax.adam(0.5, nesterov=True)
    others = {path: jnp.float32(w[path]) for path in w.keys() - kernels.keys()}
    expected, _ = jax.jit(adam.update)(others, adam.init(others))
    for path, x in expected.items():
        np.testing.assert_allclose(found[path], x, atol=1e-5, err_msg=path)


@pytest.mark.ci
@pytest.mark.parametrize(
    ('tie', 'frozen'), [('none', ()), ('source_target', ('output',)), ('all', ())]
)
def test_normalized_adam_normalizes_matrices_after_adams_step(tie, frozen):
    """Loshchilov et al. (2024), §2.6, step 2, after Adam's first step; in float64."""
    shapes = {
        'encoder/layer_0/self_attention/key/kernel': (6, 2, 4),
        'encoder/layer_0/self_attention/out_proj/kernel': (2, 4, 6),
        'encoder/layer_0/feed_forward/up/kernel': (6, 8),
        'encoder/layer_0/feed_forward/down/kernel': (8, 6),
        'encoder/layer_0/feed_forward/down/bias': (6,),
        'embedding': (5, 6),
    }
    axes = {
        'encoder/layer_0/self_attention/key/kernel': 0,
        'encoder/layer_0/self_attention/out_proj/kernel': -1,
        'encoder/layer_0/feed_forward/down/kernel': -1,
    }
    if tie != 'all':
        shapes['output'] = (5, 6)
        axes['embedding'] = -1
    shapes = {path: shape for path, shape in shapes.items() if path not in frozen}
    rng = np.random.default_rng(0)
    w, g = ({k: rng.standard_normal(x) for k, x in shapes.items()} for _ in range(2))
    settings = config(
        name='normalized_adam(eps=0.1)', schedule='constant_schedule(value=0.5)'
    )
    model = settings.model.with_values({'tie': tie})
    update, _ = make(dataclasses.replace(settings, model=model))
    params, gradients = (
        unflatten_dict(jax.tree.map(jnp.float32, x), sep='/') for x in (w, g)
    )
    updates, _ = jax.jit(update.update)(gradients, update.init(params), params)
    found = flatten_dict(jax.tree.map(np.add, params, updates), sep='/')
    for path, x in w.items():
        expected = x - 0.5 * g[path] / (abs(g[path]) + 0.1)
        if path in axes:
            expected /= np.sqrt((expected**2).sum(axes[path], keepdims=True))
        np.testing.assert_allclose(found[path], expected, atol=1e-6, err_msg=path)


def test_adam_takes_arguments_beyond_its_fields_and_lion_the_rates_of_mu_p():
    nesterov, plain = run(config(name='adam(nesterov=True)')), run(config())
    assert jnp.any(nesterov[0]['kernel'] != plain[0]['kernel'])
    lion = config(name='lion', schedule='cosine(peak=1e-3)')
    make(dataclasses.replace(lion, model=dataclasses.replace(lion.model, init='mu_p')))


@functools.cache
def shapes(**overrides):
    model = tiny.model(**overrides, num_layers=1)
    first = jax.eval_shape(lambda: init_variables(model, jax.random.key(0)))
    return first['params']


def masks(**overrides):
    return flatten_dict(optax_specs.decays(shapes(**overrides)), sep='/')


# Initializers have no parameters.
FIELDS = [field for field in variants.FOLDERS if field != 'init']
CASES = [{field: name} for field in FIELDS for name in tiny.here(field)]
FAST = {'dense': 'lora'}, {'positions': 'shaw'}, {'norm': 'batch'}, {'tie': 'none'}
CASES = [
    *FAST,
    *(pytest.param(x, marks=pytest.mark.slow) for x in CASES if x not in FAST),
]


@pytest.mark.parametrize('overrides', CASES, ids=str)
def test_only_matrices_and_embeddings_decay(overrides):
    found = masks(**overrides)
    decaying = {path for path, is_decaying in found.items() if is_decaying}
    names = ('kernel', 'embedding', 'source_embedding', 'output', 'lora_a', 'lora_b')
    assert decaying == {path for path in found if path.split('/')[-1] in names}
    assert not [path for path in decaying if 'positions' in path.split('/')]
    sizes = flatten_dict(shapes(**overrides), sep='/')
    assert all(sizes[path].ndim > 1 for path in decaying)


def plain_descent(learning_rate, factor: float = 1.0):
    """A user's optimizer: −rate · factor · gradient."""
    return optax.chain(optax.scale(factor), optax.scale_by_learning_rate(learning_rate))


def returns_nothing(learning_rate):
    pass


def infinite(learning_rate):
    return optax.stateless(
        lambda updates, params: jax.tree.map(lambda g: 1 / g, updates)
    )


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('plain_descent(rate=1)', "unknown argument 'rate'; .* takes factor"),
        ('problem', 'must take learning_rate, a schedule'),
        ('STEPS', 'has no class STEPS'),
        ('returns_nothing', 'returned None. Return an optax'),
    ],
)
def test_other_objects_are_rejected_as_optimizers(name, message):
    with pytest.raises(UserError, match=f'^optimizer.name: .*{message}'):
        make(config(name=f'{__name__}.{name}'))


def test_contracts_find_updates_that_are_not_finite():
    assert not list(testing.broken(optax_specs.findings('adam')))
    broken = testing.broken(optax_specs.findings(f'{__name__}.infinite'))
    assert [x.contract for x in broken] == ['updates are finite']


def layers(seed):
    rng = np.random.default_rng(seed)
    shapes = {'kernel': (3, 2, 4), 'bias': (4,)}
    tree = {
        f'layer_{i}': {x: jnp.float32(rng.normal(size=s)) for x, s in shapes.items()}
        for i in range(2)
    }
    return {'encoder': tree, 'embedding': jnp.float32(rng.normal(size=(5, 3)))}


STACKED = {'adam', 'lamb', 'contrib.muon', 'adafactor(min_dim_size_to_factor=2)'}
STACKED |= set(optimizer.ENTRYWISE)


@pytest.mark.ci
@pytest.mark.parametrize(
    'name',
    [
        pytest.param(name, marks=() if name in ('adam', 'lamb') else pytest.mark.slow)
        for name in sorted(STACKED)
    ],
)
def test_stacked_layers_are_updated_like_separate_ones(name):
    settings = config(name=name, schedule='constant_schedule(value=0.1)')
    separate, _ = components.make_optimizer(settings).build(tiny.model(), 10)
    scanned = separate
    if name not in optimizer.ENTRYWISE:
        scanned = optimizer.separately(separate, {'encoder': 1})
    params, gradients = layers(0), [layers(1), layers(2)]
    expected, _ = trained(separate, params, separate.init(params), gradients)
    stacked, gradients = stack_layers(params), map(stack_layers, gradients)
    found, _ = trained(scanned, stacked, scanned.init(stacked), gradients)
    assert_equal(found, stack_layers(expected))


def change_of_logits(init, width):
    """Returns how far five steps of Adam move the logits."""
    config = wmt_base.get_config()
    sizes = dict(
        d_model=width, d_ff=2 * width, num_heads=4, num_layers=1, dropout=0.0, init=init
    )
    config.model.update(sizes)
    config.optimizer.schedule = 'constant_schedule(value=0.01)'
    config = load.from_config_dict(config)
    model = builder.build(config.model, tiny.VOCAB)
    update, _ = components.make_optimizer(config).build(model)
    state = init_state(model, update, jax.random.key(0))
    rows = tiny.batch([[pair] for pair in tiny.PAIRS])
    step = jax.jit(make_train_step(model, update))

    def logits(state):
        return tiny.apply(model, state.variables, rows['source'], rows['inputs'])

    before = logits(state)
    for _ in range(5):
        state, _ = step(state, rows, jax.random.key(0))
    return float(np.sqrt(np.square(logits(state) - before).mean()))


@pytest.mark.slow
def test_mu_p_keeps_the_effect_of_a_learning_rate_at_any_width():
    """Runs the coordinate check of Yang et al. (2021), appendix D.1."""
    mu_p, xavier = (
        [change_of_logits(init, width) for width in (32, 512)]
        for init in ('mu_p(base=32)', None)
    )
    assert mu_p[0] == pytest.approx(xavier[0], rel=1e-3)  # the base
    assert 0.5 < mu_p[1] / mu_p[0] < 2
    assert xavier[1] / xavier[0] > 3

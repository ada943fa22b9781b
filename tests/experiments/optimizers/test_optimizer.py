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
from experiments.config import check, components, load
from experiments.errors import UserError
from experiments.optimizers import optax_specs, optimizer
from flaxformer_lite import testing
from flaxformer_lite.config import build, variants
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
    model = build.model(config.model, vocab_size=11)
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
            kept = decay * w if name in ('kernel', 'embedding') else 0.0
            params = params | {name: w - rate * (direction + kept)}
        history.append(params)
    return history


def assert_equal(actual, expected):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=3e-6), actual, expected
    )


@pytest.mark.parametrize(
    'settings', [{}, {'b1': 0.5, 'b2': 0.7, 'eps': 0.3}, {'b1': 0.0}]
)
def test_adam_is_the_papers(settings):
    expected = adam(**{'b1': 0.9, 'b2': 0.98, 'eps': 1e-9} | settings)
    assert_equal(run(config(**settings)), expected)


def test_a_gradient_is_scaled_down_to_the_norm_of_clip():
    # A large ε, for without it Adam hardly feels the size of a gradient.
    settings = dict(b1=0.9, b2=0.98, eps=0.3, clip=0.5)
    assert_equal(run(config(**settings)), adam(**settings))


def test_adamw_decays_matrices_and_embeddings_and_nothing_else():
    expected = adam(b1=0.9, b2=0.98, eps=1e-9, decay=0.4)
    assert_equal(run(config(name='adamw', weight_decay=0.4)), expected)


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


def same(one, other):
    if jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key):
        one, other = map(jax.random.key_data, (one, other))
    np.testing.assert_array_equal(one, other)


def every_optimizer():
    seeded = {'noisy_sgd': 'noisy_sgd(key=1)'}
    return [seeded.get(name, name) for name in optax_specs.makers()]


@pytest.mark.slow
def test_every_optimizer_goes_on_from_its_checkpoint_as_if_it_had_not_stopped(tmp_path):
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
        on, back = (
            trained(update, *x[name], gradients()[3:]) for x in (saved, restored)
        )
        jax.tree.map(same, on, back)
        moved = jax.tree.map(lambda x, y: bool(jnp.any(x != y)), on[0], params)
        assert all(jax.tree.leaves(moved)), name
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(on[0])), name


def test_the_rate_of_every_optimizer_is_the_schedules():
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


def test_lion_is_chen_et_als_with_our_mask_of_decay():
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


def model_paths():
    model = build.model({'num_layers': 1}, vocab_size=11)
    variables = jax.eval_shape(lambda: init_variables(model, jax.random.key(0)))
    return flatten_dict(variables['params'])


def test_muon_is_for_the_kernels_of_dense_layers_and_adam_for_the_rest():
    rng = np.random.default_rng(0)
    heads, width, d_model, d_ff = 2, 3, 5, 7
    shapes = {
        ('self_attention', 'query', 'kernel'): (d_model, heads, width),
        ('self_attention', 'out_proj', 'kernel'): (heads, width, d_model),
        ('feed_forward', 'up', 'kernel'): (d_model, d_ff),
    }
    as_matrices = {
        ('self_attention', 'query', 'kernel'): (d_model, heads * width),
        ('self_attention', 'out_proj', 'kernel'): (heads * width, d_model),
        ('feed_forward', 'up', 'kernel'): (d_model, d_ff),
    }
    kernels = {path: rng.standard_normal(shape) for path, shape in shapes.items()}
    assert set(shapes) <= {path[-3:] for path in model_paths()}
    each = rng.standard_normal((2, d_model, d_ff))
    others = {('embedding',): rng.standard_normal((6, d_model))}
    others |= {('feed_forward', 'up', 'bias'): rng.standard_normal(d_ff)}

    def moved(update, params):
        params = jax.tree.map(jnp.float32, unflatten_dict(params))
        return flatten_dict(
            jax.jit(update.update)(params, update.init(params), params)[0]
        )

    constant = config(
        name='contrib.muon(weight_decay=0.1)', schedule='constant_schedule(value=0.5)'
    )
    ours, _ = make(constant)
    experts = {('feed_forward', 'experts', 'up', 'kernel'): each}
    found = moved(ours, kernels | others | experts)
    rate = optax.constant_schedule(0.5)
    muon = optax.contrib.muon(rate, weight_decay=0.1)
    matrices = {
        path: kernels[path].reshape(shape) for path, shape in as_matrices.items()
    }
    for path, x in moved(muon, matrices).items():
        np.testing.assert_allclose(found[path], x.reshape(shapes[path]), atol=1e-5)
    for one, x in zip(each, found[next(iter(experts))], strict=True):
        (expected,) = moved(muon, {('kernel',): one}).values()
        np.testing.assert_allclose(x, expected, atol=1e-5)
    adam = optax.adam(rate, nesterov=True)
    for path, x in moved(adam, others).items():
        np.testing.assert_allclose(found[path], x, atol=1e-5)


@pytest.mark.parametrize(
    ('tie', 'frozen'), [('none', ()), ('source_target', ('output',)), ('all', ())]
)
def test_normalized_adam_is_adam_on_the_sphere(tie, frozen):
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
    made = config(
        name='normalized_adam(eps=0.1)', schedule='constant_schedule(value=0.5)'
    )
    fields = made.model.with_values({'tie': tie})
    update, _ = make(dataclasses.replace(made, model=fields))
    params, gradients = (
        unflatten_dict(jax.tree.map(jnp.float32, x), sep='/') for x in (w, g)
    )
    updates, _ = update.update(gradients, update.init(params), params)
    found = flatten_dict(optax.apply_updates(params, updates), sep='/')
    for path, x in w.items():
        expected = x - 0.5 * g[path] / (abs(g[path]) + 0.1)
        if path in axes:
            expected /= np.sqrt((expected**2).sum(axes[path], keepdims=True))
        np.testing.assert_allclose(found[path], expected, atol=1e-6, err_msg=path)


def newton_schulz(matrix):
    """Returns the orthogonalized matrix of Jordan et al. (2024), "Muon"."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix / np.linalg.norm(matrix)
    for _ in range(5):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x


@pytest.mark.parametrize(
    ('name', 'shape', 'as_matrix'),
    [
        ('query', (12, 2, 4), (12, 8)),
        ('out_proj', (2, 4, 12), (8, 12)),
        ('head_gate', (12, 2, 4), (12, 8)),
        ('head_gate', (12, 2, 1), (12, 2)),
        ('forget_gate', (12, 2), (12, 2)),
    ],
)
def test_muon_orthogonalizes_all_heads_of_an_attention_as_one_matrix(
    name, shape, as_matrix
):
    kernel = np.random.default_rng(0).standard_normal(shape)
    schedule = 'constant_schedule(value=0.5)'
    update, _ = make(config(name='contrib.muon', schedule=schedule))
    params = {'self_attention': {name: {'kernel': jnp.float32(kernel)}}}
    # The first step is the gradient's direction, whatever the momentum.
    updates, _ = update.update(params, update.init(params), params)
    fan_in, fan_out = as_matrix
    rate = 0.5 * np.sqrt(max(1, fan_out / fan_in))
    expected = -rate * newton_schulz(kernel.reshape(as_matrix))
    found = updates['self_attention'][name]['kernel']
    np.testing.assert_allclose(found, expected.reshape(shape), atol=1e-5)


def test_fields_of_adam_are_refused_for_others_and_other_arguments_are_not_for_adam():
    lion = config(name='lion')
    with pytest.raises(UserError, match='optimizer.b1=0.9 has no effect where optimi'):
        check.check_overrides(lion, ['optimizer.name', 'optimizer.b1'])
    check.check_overrides(lion, ['optimizer.name', 'optimizer.clip'])
    check.check_overrides(config(b1=0.5), ['optimizer.b1'])
    (nesterov, *_), (plain, *_) = run(config(name='adam(nesterov=True)')), run(config())
    assert jnp.any(nesterov['kernel'] != plain['kernel'])


def test_rates_of_an_initialisation_are_adams():
    def wide(name):
        narrow = config(name=name, schedule='cosine(peak=1e-3)')
        model = dataclasses.replace(narrow.model, init='mu_p')
        return dataclasses.replace(narrow, model=model)

    with pytest.raises(UserError, match='model.init=mu_p. Choose one of'):
        make(wide('contrib.schedule_free_sgd'))
    make(wide('lion'))


@pytest.mark.parametrize(
    'settings, message',
    [
        (
            {'weight_decay': 0.1},
            'optimizer.weight_decay=0.1 applies only to optimizer.name=adamw. Choose',
        ),
        (
            {'weight_decay': 0.1, 'name': 'lion(b1=0.8)'},
            r'Write lion\(weight_decay=0.1\) if the optimizer supports it\.$',
        ),
        (
            {'name': 'muon'},
            "optimizer.name must be one of adabelief, .*not 'muon'; did you mean "
            "'contrib.muon'",
        ),
        (
            {'name': 'sgd(b1=0.5)'},
            "optimizer.name: unknown argument 'b1'; sgd takes momentum",
        ),
        (
            {'schedule': 'noah(warmup=4)'},
            "optimizer.schedule: 'noah' is not one of cosine, noam",
        ),
        (
            {'schedule': 'noam(warmup=0)'},
            'optimizer.schedule: warmup must be at least 1',
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(settings, message):
    with pytest.raises(UserError, match=message):
        make(config(**settings))


@functools.cache
def shapes(**overrides):
    model = tiny.model(**overrides, num_layers=1)
    first = jax.eval_shape(lambda: init_variables(model, jax.random.key(0)))
    return first['params']


def masks(**overrides):
    return flatten_dict(optax_specs.decays(shapes(**overrides)), sep='/')


# An initialisation has no parameters.
FIELDS = [field for field in variants.FOLDERS if field != 'init']
VARIANTS = [{field: name} for field in FIELDS for name in tiny.here(field)]


@pytest.mark.parametrize('overrides', [*VARIANTS, dict(tie='none')], ids=str)
def test_matrices_and_embeddings_decay_and_nothing_else(overrides):
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


def endless(learning_rate):
    return optax.stateless(
        lambda updates, params: jax.tree.map(lambda g: 1 / g, updates)
    )


def test_an_optimizer_of_ones_own_is_named_by_its_function():
    update, schedule = make(config(name=f'{__name__}.plain_descent(factor=0.5)'))
    params, gradients = jax.tree.map(jnp.float32, problem())
    found, _ = update.update(gradients[0], update.init(params), params)
    expected = jax.tree.map(lambda g: -schedule(0) * 0.5 * g, gradients[0])
    jax.tree.map(np.testing.assert_allclose, found, expected)


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('plain_descent(rate=1)', "unknown argument 'rate'; .* takes factor"),
        ('problem', 'must take learning_rate, a schedule'),
        ('STEPS', 'has no class STEPS'),
    ],
)
def test_what_cannot_be_an_optimizer_is_refused(name, message):
    with pytest.raises(UserError, match=f'^optimizer.name: .*{message}'):
        make(config(name=f'{__name__}.{name}'))


def test_the_contracts_find_updates_that_are_not_finite():
    def broken(name):
        found = testing.broken(optax_specs.findings(name))
        return [finding.contract for finding in found]

    for name in ('adam', 'contrib.muon', f'{__name__}.plain_descent'):
        assert not broken(name)
    assert broken(f'{__name__}.endless') == ['updates are finite']


def moved(update, params, gradients):
    state = update.init(params)
    for gradient in gradients:
        updates, state = jax.jit(update.update)(gradient, state, params)
        params = optax.apply_updates(params, updates)
    return params


def layers(seed):
    rng = np.random.default_rng(seed)
    shapes = {'kernel': (3, 2, 4), 'bias': (4,)}
    tree = {
        f'layer_{i}': {x: jnp.float32(rng.normal(size=s)) for x, s in shapes.items()}
        for i in range(2)
    }
    return {'encoder': tree, 'embedding': jnp.float32(rng.normal(size=(5, 3)))}


@pytest.mark.parametrize(
    'name',
    [
        *('adam', 'contrib.muon', 'adafactor(min_dim_size_to_factor=2)', 'lamb'),
        *(
            pytest.param(x, marks=pytest.mark.slow)
            for x in optimizer.ENTRYWISE
            if x != 'adam'
        ),
    ],
)
def test_an_optimizer_moves_stacked_layers_as_it_moves_separate_ones(name):
    settings = config(name=name, schedule='constant_schedule(value=0.1)')
    separate, _ = components.make_optimizer(settings).build(tiny.model(), 10)
    scanned = separate
    if name not in optimizer.ENTRYWISE:
        scanned = optimizer.separately(separate, {'encoder': 1})
    params, gradients = layers(0), [layers(1), layers(2)]
    expected = moved(separate, params, gradients)
    found = moved(scanned, stack_layers(params), map(stack_layers, gradients))
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
    model = build.model(config.model, tiny.VOCAB)
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
def test_with_mu_p_a_rate_means_the_same_at_any_width():
    """Runs the coordinate check of Yang et al. (2021), appendix D.1."""
    mu_p, xavier = (
        [change_of_logits(init, width) for width in (32, 512)]
        for init in ('mu_p(base=32)', None)
    )
    assert mu_p[0] == pytest.approx(xavier[0], rel=1e-3)  # the base
    assert 0.5 < mu_p[1] / mu_p[0] < 2
    assert xavier[1] / xavier[0] > 3

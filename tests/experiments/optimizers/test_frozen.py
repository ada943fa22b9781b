"""Tests of frozen parameters."""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from configs import wmt_base
from experiments.config import components, load
from experiments.costs.ledger import ledger
from experiments.optimizers import eval_params, frozen
from flaxformer_lite.training import freezing
from flaxformer_lite.training.train_step import (
    TrainState,
    init_state,
    make_train_step,
)


def config(**fields):
    found = wmt_base.get_config()
    load.fill(found)
    found.model.update(tiny.SIZES)
    found.tokenizer = f'sentencepiece(vocab_size={tiny.VOCAB})'
    found.batch.tokens, found.batch.max_length = 32, 8
    for name, value in fields.items():
        *sections, key = name.split('__')
        part = functools.reduce(operator.getitem, sections, found)
        part[key] = value
    return load.from_config_dict(found)


def build(settings):
    return components.build(settings, tiny.VOCAB).model


def size(tree):
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


@pytest.mark.ci
@pytest.mark.ci
@pytest.mark.parametrize(
    ('freeze', 'model', 'accumulate'),
    [
        ('attention', {'num_layers': 1, 'architecture': 'decoder_only'}, 1),
        ('encoder', {'scan_layers': True}, 2),
    ],
    ids=str,
)
def test_freezing_equals_zero_gradients(freeze, model, accumulate):
    fields = {f'model__{name}': value for name, value in model.items()}
    settings = config(train__freeze=freeze, **fields)
    model = build(settings)
    frozen_paths = frozen.paths(settings.train.freeze, model)
    batch = tiny.batch([[pair] for pair in tiny.PAIRS + tiny.PAIRS[:1]])
    key = jax.random.key(1)
    sgd = optax.sgd(0.1, momentum=0.9)

    def labels(params):
        paths = freezing.paths(params)
        named = {p: 'zero' if p in frozen_paths else 'sgd' for p in paths}
        return freezing.from_paths(named)

    masked = optax.multi_transform({'sgd': sgd, 'zero': optax.set_to_zero()}, labels)
    variables = tiny.all_variables(model)
    state = TrainState.create(variables, sgd, frozen=frozen_paths)
    masked_state = TrainState.create(variables, masked)
    before = freezing.paths(jax.device_get(state.params))
    settings = dict(accumulate=accumulate)
    step = jax.jit(make_train_step(model, sgd, frozen=frozen_paths, **settings))
    masked_step = jax.jit(make_train_step(model, masked, **settings))
    for _ in range(2):
        state, metrics = step(state, batch, key)
        masked_state, _ = masked_step(masked_state, batch, key)
    after, expected = map(freezing.paths, (state.params, masked_state.params))
    assert 0 < len(frozen_paths) < len(after)
    for path, x in after.items():
        np.testing.assert_allclose(x, expected[path], rtol=1e-5, atol=1e-6)
        is_same = np.asarray(x).tobytes() == before[path].tobytes()
        assert is_same == (path in frozen_paths), path
    assert metrics.gradient_norm > 0


def abstract_step(settings):
    """Returns the model, its frozen paths, and abstract states before and after."""
    model = build(settings)
    frozen_paths = frozen.paths(settings.train.freeze, model)
    update, _ = components.make_optimizer(settings).build(model)
    make = functools.partial(init_state, model, update, jax.random.key(0))
    state = jax.eval_shape(functools.partial(make, frozen=frozen_paths))
    step = make_train_step(model, update, frozen=frozen_paths)
    batch = tiny.batch([[pair] for pair in tiny.PAIRS])
    after, _ = jax.eval_shape(step, state, batch, jax.random.key(1))
    assert jax.tree.structure(after) == jax.tree.structure(state)
    return model, frozen_paths, state, jax.eval_shape(make)


@pytest.mark.parametrize(
    ('name', 'scan_layers'),
    [
        ('adam', False),
        *(
            pytest.param(name, scan_layers, marks=pytest.mark.slow)
            for name, scan_layers in (
                *(('lamb', True), ('contrib.muon', True), ('contrib.muon', False)),
                *(('adafactor', False), ('contrib.prodigy', False), ('lion', False)),
                ('contrib.schedule_free_adamw', False),
            )
        ),
    ],
)
def test_optimizer_state_excludes_frozen_parameters(name, scan_layers):
    settings = config(
        train__freeze='^decoder/.*(kernel|scale)',
        optimizer__name=name,
        optimizer__clip=1.0,
        model__scan_layers=scan_layers,
        model__num_layers=2 if scan_layers else 1,
    )
    _, frozen_paths, state, unfrozen_state = abstract_step(settings)
    trained, rest = freezing.split(state.params, frozen_paths)
    assert size(rest) > 0 and size(trained) > 0
    leaves = jax.tree_util.tree_leaves_with_path(state.opt_state)
    assert not [p for p, _ in leaves if 'query' in str(p) and 'decoder' in str(p)]
    assert size(state.opt_state) < size(unfrozen_state.opt_state)
    if name == 'adam':
        counts = 4 * len([x for _, x in leaves if x.ndim == 0])
        assert size(state.opt_state) == 2 * size(trained) + counts


def test_one_layer_of_a_scanned_period_may_be_frozen():
    settings = config(
        train__freeze='^decoder/layer_1/',
        optimizer__name='lamb',
        model__architecture='decoder_only',
        model__scan_layers=True,
        model__attention='[softmax, local(window=2)]',
    )
    _, frozen_paths, *_ = abstract_step(settings)
    assert frozen_paths
    assert all(path.startswith('decoder/layers/layer_1/') for path in frozen_paths)


def test_schedule_free_average_leaves_frozen_parameters_unchanged():
    settings = config(
        train__freeze='encoder',
        optimizer__name='contrib.schedule_free_sgd(b1=0.5)',
        model__num_layers=1,
    )
    model = build(settings)
    frozen_paths = frozen.paths(settings.train.freeze, model)
    update, _ = components.make_optimizer(settings).build(model)
    params = tiny.parameters(model)
    trained, _ = freezing.split(params, frozen_paths)
    opt_state = update.init(trained)._replace(z=jax.tree.map(lambda x: 3 * x, trained))
    zero = jnp.zeros((), jnp.int32)
    state = TrainState(step=zero, params=params, opt_state=opt_state, skipped=zero)
    found = freezing.paths(eval_params.variables(state)['params'])
    for path, y in freezing.paths(params).items():
        # y = x / 2 + z / 2 and z = 3 y, so x = −y.
        expected = y if path in frozen_paths else -y
        np.testing.assert_allclose(found[path], expected, rtol=1e-5)


def test_ledger_counts_trained_parameters():
    everything = ledger(config(model__num_layers=1))
    frozen_part = dict(train__freeze='encoder|embedding')
    part = ledger(config(model__num_layers=1, **frozen_part))
    encoder = {
        name: n
        for name, n in everything['parameters'].items()
        if name.startswith('encoder') or name == 'embeddings'
    }
    assert part['parameters'] == everything['parameters']
    assert everything['trained'] == everything['parameters']
    rest = {k: n for k, n in everything['parameters'].items() if k not in encoder}
    rest['total'] -= sum(encoder.values())
    assert part['trained'] == rest
    assert part['bytes']['gradients'] == 4 * rest['total']
    assert part['bytes']['optimizer'] == 2 * 4 * rest['total'] + 8
    assert part['device']['gradients'] == part['bytes']['gradients']
    # The encoder has no backward pass, so one of three products remains.
    for name in encoder:
        if name in everything['flops_per_token']:
            flops = [costs['flops_per_token'][name] for costs in (part, everything)]
            assert 3 * flops[0] == flops[1], name

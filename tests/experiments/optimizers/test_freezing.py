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
from experiments.errors import UserError
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


@pytest.mark.parametrize(
    ('model', 'accumulate'),
    [
        ({'num_layers': 1}, 1),
        pytest.param({'scan_layers': True}, 2, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_freezing_is_sgd_with_gradients_of_zero(model, accumulate):
    fields = {f'model__{name}': value for name, value in model.items()}
    settings = config(train__freeze='encoder', **fields)
    model = build(settings)
    held = frozen.paths(settings.train.freeze, model)
    batch = tiny.batch([[pair] for pair in tiny.PAIRS + tiny.PAIRS[:1]])
    key = jax.random.key(1)
    sgd = optax.sgd(0.1, momentum=0.9)

    def labels(params):
        named = {p: 'zero' if p in held else 'sgd' for p in freezing.paths(params)}
        return freezing.from_paths(named)

    masked = optax.multi_transform({'sgd': sgd, 'zero': optax.set_to_zero()}, labels)
    variables = tiny.all_variables(model)
    ours = TrainState.create(variables, sgd, frozen=held)
    theirs = TrainState.create(variables, masked)
    before = freezing.paths(jax.device_get(ours.params))
    step = jax.jit(make_train_step(model, sgd, accumulate=accumulate, frozen=held))
    all_step = jax.jit(make_train_step(model, masked, accumulate=accumulate))
    for _ in range(2):
        ours, metrics = step(ours, batch, key)
        theirs, _ = all_step(theirs, batch, key)
    after, expected = freezing.paths(ours.params), freezing.paths(theirs.params)
    assert 0 < len(held) < len(after)
    for path, x in after.items():
        np.testing.assert_allclose(x, expected[path], rtol=1e-5, atol=1e-6)
        is_same = np.asarray(x).tobytes() == before[path].tobytes()
        assert is_same == (path in held), path
    assert metrics.gradient_norm > 0


@pytest.mark.parametrize(
    ('name', 'scan_layers'),
    [
        ('adam', False),
        ('lamb', True),  # which goes by whole layers
        ('contrib.muon', True),
        *(
            pytest.param(name, False, marks=pytest.mark.slow)
            for name in (
                *('adafactor', 'contrib.muon', 'contrib.prodigy', 'lion'),
                'contrib.schedule_free_adamw',
            )
        ),
    ],
)
def test_an_optimizer_keeps_nothing_of_what_is_frozen(name, scan_layers):
    settings = config(
        train__freeze='^decoder/.*(kernel|scale)',
        optimizer__name=name,
        optimizer__clip=1.0,
        model__scan_layers=scan_layers,
    )
    model = build(settings)
    held = frozen.paths(settings.train.freeze, model)
    update, _ = components.make_optimizer(settings).build(model)
    make = functools.partial(init_state, model, update, jax.random.key(0))
    state = jax.eval_shape(functools.partial(make, frozen=held))
    step = make_train_step(model, update, frozen=held)
    batch = tiny.batch([[pair] for pair in tiny.PAIRS])
    after, _ = jax.eval_shape(step, state, batch, jax.random.key(1))
    assert jax.tree.structure(after) == jax.tree.structure(state)
    trained, rest = freezing.split(state.params, held)
    assert size(rest) > 0 and size(trained) > 0
    kept = jax.tree_util.tree_leaves_with_path(state.opt_state)
    assert not [p for p, _ in kept if 'query' in str(p) and 'decoder' in str(p)]
    assert size(state.opt_state) < size(jax.eval_shape(make).opt_state)
    if name == 'adam':
        counts = 4 * len([x for _, x in kept if x.ndim == 0])
        assert size(state.opt_state) == 2 * size(trained) + counts


def test_one_layer_of_a_turn_may_be_frozen():
    settings = config(
        train__freeze='^encoder/layer_1/',
        optimizer__name='contrib.muon',
        model__scan_layers=True,
        model__attention='[softmax, local(window=2)]',
        model__decoder__attention='softmax',
    )
    model = build(settings)
    held = frozen.paths(settings.train.freeze, model)
    assert held and all(path.startswith('encoder/layers/layer_1/') for path in held)
    update, _ = components.make_optimizer(settings).build(model)
    make = functools.partial(init_state, model, update, jax.random.key(0), frozen=held)
    state = jax.eval_shape(make)
    step = make_train_step(model, update, frozen=held)
    batch = tiny.batch([[pair] for pair in tiny.PAIRS])
    after, _ = jax.eval_shape(step, state, batch, jax.random.key(1))
    assert jax.tree.structure(after) == jax.tree.structure(state)


def test_a_schedule_free_average_is_of_what_is_trained():
    settings = config(
        train__freeze='encoder',
        optimizer__name='contrib.schedule_free_sgd(b1=0.5)',
    )
    model = build(settings)
    held = frozen.paths(settings.train.freeze, model)
    update, _ = components.make_optimizer(settings).build(model)
    params = tiny.parameters(model)
    trained, _ = freezing.split(params, held)
    opt_state = update.init(trained)._replace(z=jax.tree.map(lambda x: 3 * x, trained))
    zero = jnp.zeros((), jnp.int32)
    state = TrainState(step=zero, params=params, opt_state=opt_state, skipped=zero)
    found = freezing.paths(eval_params.variables(state)['params'])
    for path, y in freezing.paths(params).items():
        # y = x / 2 + z / 2, and z = 3 y: so x = −y.
        np.testing.assert_allclose(found[path], y if path in held else -y, rtol=1e-5)


@pytest.mark.parametrize(
    ('pattern', 'message'),
    [
        ('encodr', "train.freeze='encodr' matches no parameter"),
        ('.', "train.freeze='.' matches every parameter"),
        ('(', r"train.freeze must be a regular expression, not '\(': missing"),
    ],
)
def test_a_pattern_of_nothing_or_all_is_refused(pattern, message):
    with pytest.raises(UserError, match=message):
        ledger(config(train__freeze=pattern))


def test_the_ledger_counts_what_is_trained():
    everything = ledger(config())
    part = ledger(config(train__freeze='encoder|embedding'))
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
    # No gradient goes into the encoder: of three products one stays.
    for name in encoder:
        if name in everything['flops_per_token']:
            flops = [costs['flops_per_token'][name] for costs in (part, everything)]
            assert 3 * flops[0] == flops[1], name
